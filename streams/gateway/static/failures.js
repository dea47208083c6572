// Failures: queries without an answer, and records that could not be handled, each with why and a way to send it again.

import { get, post } from '/static/api.js';
import { clock, counts, el, table } from '/static/dom.js';
import { asked, filters } from '/static/filters.js';
import { FAILED, list } from '/static/overview.js';

export async function failures(view) {
  const said = el('p', { role: 'status' }), chosen = filters(() => refresh()), queries = el('div'), records = el('div');
  const refresh = async () => {
    const { data, unit, values } = await get(`/v1/queries?${asked({ limit: 100, status: FAILED })}`);
    counts(unit);
    chosen.show(values);
    queries.replaceChildren(data.length ? list(data, true) : el('p', { class: 'quiet' }, 'None. A query that fails, expires or is rejected is listed here, with the reason.'));
  };
  view.replaceChildren(el('h2', {}, 'Failures'), el('h3', {}, 'Queries without an answer'), chosen.place, queries,
    el('h3', {}, 'Records that could not be handled'), said, records);
  await Promise.all([refresh(), letters(said).then((found) => records.append(...found))]);
}

async function letters(said) {
  let found;
  try {
    found = (await get('/v1/dead-letters?limit=200')).data;
  } catch (error) {
    if (error.status !== 403) throw error;
    return [el('p', { class: 'quiet' }, 'Only a key with the scope admin sees these: they hold the data of all tenants.')];
  }
  if (!found.length) return [el('p', { class: 'quiet' }, 'None.')];
  return [el('p', {}, 'Fix the cause, then send the record again: here, or with ', el('code', {}, 'python -m streams dead-letters retry ORIGIN'), '.'),
    table('Records that could not be handled', ['Again', 'Reason', 'Time', 'Service', 'Error', 'Origin', 'Query'], found.map((l) => [
      again(l, said), el('td', { class: 'text' }, l.reason), clock(l.created), l.service, l.error, l.origin, l.query_id]))];
}

function again(letter, said) {
  if (letter.retried) return 'sent again';
  const button = el('button', { type: 'button', 'aria-label': `Retry ${letter.origin}` }, 'Retry');
  button.addEventListener('click', async () => {
    if (!await confirmed(letter)) return;
    button.disabled = true;
    try {
      const done = await post('/v1/dead-letters/retry', { origin: letter.origin });
      said.className = 'good';
      said.textContent = done.duplicate ? `${letter.origin} was sent again before.` : `${letter.origin} is sent again. If its cause is not fixed, it comes back.`;
      button.replaceWith('sent again');
    } catch (error) {
      said.className = 'bad';
      said.textContent = error.message;
      button.disabled = false;
    }
  });
  return button;
}

function confirmed(letter) {
  const dialog = el('dialog', { 'aria-labelledby': 'confirm' },
    el('h2', { id: 'confirm' }, 'Send this record again?'),
    el('p', {}, `It lies at ${letter.origin}. The ${letter.service} refused it: ${letter.reason}`),
    el('p', { class: 'quiet' }, 'Fix the cause first, otherwise it comes back.'),
    el('form', { method: 'dialog', class: 'row' },
      el('button', { class: 'main', value: 'yes' }, 'Send again'), el('button', { value: 'no' }, 'Cancel')));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => { dialog.remove(); resolve(dialog.returnValue === 'yes'); });
  });
}
