// Dead letters: what could not be handled, why, and a way to send it again.

import { get, post } from '/static/api.js';
import { clock, el, table } from '/static/dom.js';

export async function letters(view) {
  const found = (await get('/v1/dead-letters?limit=200')).data;
  const said = el('p', { role: 'status' });
  view.replaceChildren(el('h2', {}, 'Dead letters'),
    el('p', {}, 'Records that could not be handled. Fix the cause, then send the record again: here, or with ', el('code', {}, 'python -m streams dead-letters retry ORIGIN'), '.'),
    said,
    found.length
      ? table('Dead letters', ['Again', 'Reason', 'Time', 'Service', 'Error', 'Origin', 'Query'], found.map((l) => [
        again(l, said), el('td', { class: 'text' }, l.reason), clock(l.created), l.service, l.error, l.origin, l.query_id]))
      : el('p', { class: 'quiet' }, 'None.'));
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
      said.textContent = done.duplicate ? `${letter.origin} was sent again before.` : `${letter.origin} is sent again. If its cause is not fixed, it comes back as a new dead letter.`;
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
    el('p', { class: 'quiet' }, 'Fix the cause first, otherwise it becomes a dead letter again.'),
    el('form', { method: 'dialog', class: 'row' },
      el('button', { class: 'main', value: 'yes' }, 'Send again'), el('button', { value: 'no' }, 'Cancel')));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => { dialog.remove(); resolve(dialog.returnValue === 'yes'); });
  });
}
