// Where choices go: model by effort, one small picture for each family, session or objective.

import { cost, counted, el, inUnit, percent, titled } from '/static/dom.js';

let by = null; // chosen once, it stays

export function choices({ choices: all, by: kinds, models }, again) {
  const offered = Object.keys(kinds).filter((kind) => kinds[kind].some((group) => group.of !== null));
  const shown = offered.includes(by) ? by : offered.find((kind) => kinds[kind].length > 1) ?? offered[0];
  const queries = all.reduce((sum, each) => sum + each.queries, 0);
  if (!queries) return [];
  const parts = all.map((each) => split(each.action));
  const order = models.map((model) => model.name);
  const rows = [...new Set(parts.map(([model]) => model))].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const efforts = [...new Set(parts.map(([, effort]) => effort))].sort((a, b) => samples(a) - samples(b) || a.localeCompare(b, undefined, { numeric: true }));
  const select = el('select', { 'aria-label': 'Choices by' }, offered.map((kind) => el('option', { value: kind, selected: kind === shown }, titled(kind))));
  select.addEventListener('change', () => { by = select.value; again(); });
  const groups = ordered(kinds[shown] ?? []);
  const left = queries - groups.reduce((sum, group) => sum + group.queries, 0);
  return [el('h2', {}, 'Where choices go'),
    el('p', { class: 'quiet' }, 'Per cent of the queries of each picture. Down: the model. Across: the effort, as parallel paths / candidates a step / beam.'),
    offered.length > 1 ? el('label', { class: 'by' }, 'By', select) : null,
    el('div', { class: 'panels' }, groups.map((group) => panel(group, shown, rows, efforts))),
    left ? el('p', { class: 'quiet' }, `${counted(left, 'query', 'queries')} in smaller groups ${left === 1 ? 'is' : 'are'} not shown.`) : null];
}

const split = (action) => { const at = action.indexOf('/'); return [action.slice(0, at), action.slice(at + 1)]; };
const samples = (effort) => { const [paths, candidates] = effort.split('/'); return paths * candidates; };

// Numbers in their order; words as they come, the most frequent first.
const ordered = (groups) => (groups.every(({ of }) => of === null || /^\d+$/.test(of)) ? [...groups].sort((a, b) => (a.of ?? Infinity) - (b.of ?? Infinity)) : groups);

function panel(group, kind, rows, efforts) {
  const share = new Map(group.choices.map((each) => [each.action, each.queries / group.queries]));
  const cell = (action) => {
    const found = share.get(action) ?? 0;
    return el('td', { share: found }, found ? (found < 0.005 ? '<1' : (100 * found).toFixed(0)) : '');
  };
  const title = group.of === null ? `no ${kind} given` : `${/^\d+$/.test(group.of) ? `${kind} ` : ''}${group.of.replace(/^(began \w{6})\w+$/, '$1…')}`;
  return el('figure', { class: 'panel' },
    el('figcaption', {}, el('b', {}, title), ` ${counted(group.queries, 'query', 'queries')}${group.accuracy ? `, ${percent(group.accuracy.mean)} right` : ''}${group.cost ? `, ${cost(group.cost.mean)} ${inUnit()}` : ''}`),
    el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Choices for ${title}` }, el('table', { class: 'heat' },
      el('thead', {}, el('tr', {}, el('td', {}), efforts.map((effort) => el('th', { scope: 'col' }, effort)))),
      el('tbody', {}, rows.map((model) => el('tr', {}, el('th', { scope: 'row' }, model), efforts.map((effort) => cell(`${model}/${effort}`))))))));
}
