// Dead letters: what could not be handled, why, and how to send it again.

import { get } from '/static/api.js';
import { clock, el, table } from '/static/dom.js';

export async function letters(view) {
  const found = (await get('/v1/dead-letters?limit=200')).data;
  view.replaceChildren(el('h2', {}, 'Dead letters'),
    el('p', {}, 'Records that could not be handled. Fix the cause, then send one again with ', el('code', {}, 'python -m streams dead-letters retry ORIGIN'), '.'),
    found.length
      ? table('Dead letters', ['Time', 'Room', 'Error', 'Reason', 'Origin', 'Query'], found.map((l) => [
        clock(l.created), l.room, l.error, el('td', { class: 'text' }, l.reason), l.origin, l.query_id]))
      : el('p', { class: 'quiet' }, 'None.'));
}
