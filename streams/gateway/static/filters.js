// Filters by tenant, objective, model and time: chosen once, they hold in every view that lists queries.

import { el } from '/static/dom.js';

const TIMES = [['', 'all that is kept'], ['900', 'last 15 minutes'], ['3600', 'last hour'], ['86400', 'last day']];
const LABELS = { tenant: 'Tenant', objective: 'Objective', model: 'Model' };
const wanted = new Map();

// The query string of what is chosen, and of `more`.
export const asked = (more = {}) => new URLSearchParams([...wanted, ...Object.entries(more)]).toString();
export const filtered = () => wanted.size > 0;
export const unfiltered = () => wanted.clear();

export function filters(changed) {
  const selects = { ...LABELS, within_s: 'Time' };
  for (const [name, label] of Object.entries(selects)) {
    const select = el('select', { 'aria-label': label });
    select.addEventListener('change', () => {
      if (select.selectedIndex > 0) wanted.set(name, select.value); else wanted.delete(name);
      changed();
    });
    selects[name] = el('label', { hidden: name !== 'within_s' }, label, select); // the others once their values are known
  }
  const fill = (name, pairs) => {
    const select = selects[name].lastChild, now = JSON.stringify(pairs);
    if (select.dataset.shown !== now) select.replaceChildren(...pairs.map(([value, text]) => el('option', { value }, text)));
    select.dataset.shown = now;
    select.selectedIndex = wanted.has(name) ? pairs.findIndex(([value], at) => at && value === wanted.get(name)) : 0;
  };
  fill('within_s', TIMES);
  // `values` are those of all queries; a choice of one is no choice.
  const show = (values) => {
    for (const name of Object.keys(LABELS)) {
      fill(name, [['', 'all'], ...values[name].map((value) => [value ?? '', value ?? 'none'])]);
      selects[name].hidden = values[name].length < 2 && !wanted.has(name);
    }
  };
  return { place: el('div', { class: 'filters', role: 'group', 'aria-label': 'Filters' }, Object.values(selects)), show };
}
