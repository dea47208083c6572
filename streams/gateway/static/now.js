// Now: what goes on, and whether choosing pays.

import { get } from '/static/api.js';
import { curves } from '/static/curves.js';
import { clock, cost, counted, el, inUnit, named, percent, replace, table, tile } from '/static/dom.js';

const EVERY_MS = 3000;

export async function now(view) {
  const drawn = curves();
  const parts = { said: el('p', { role: 'status', class: 'bad' }), top: el('div'), marks: el('div'), rest: el('div') };
  view.replaceChildren(el('h2', {}, 'Now'), parts.said, parts.top, drawn.place, parts.marks, parts.rest);
  let seen = null;
  const refresh = async () => {
    const [found, latest] = await Promise.all([get('/v1/now?limit=1000'), get('/v1/queries?limit=20')]);
    seen = Date.now() / 1000;
    counted(found.unit);
    parts.said.textContent = '';
    replace(parts.top, header(found));
    drawn.show(found.series, found.marks);
    replace(parts.marks, changes(found.marks));
    replace(parts.rest, tables(found, latest.data));
  };
  await refresh();
  const again = () => refresh().catch((error) => { parts.said.textContent = `What is shown is from ${clock(seen)}: ${error.status ? error.message : 'the gateway does not answer'}.`; });
  const timer = setInterval(() => { if (!document.hidden) again(); }, EVERY_MS);
  return () => clearInterval(timer);
}

function header(found) {
  const { policy, control } = found.cohorts;
  const arm = (name, group) => [
    tile(percent(group.accuracy?.mean), `accuracy of the ${name}${spread(group.accuracy, percent)}`),
    tile(cost(group.cost?.mean), `mean ${inUnit()} of the ${name}${spread(group.cost, cost)}`)];
  return [
    el('p', { class: 'sentence', 'aria-live': 'polite' }, sentence(found)),
    el('div', { class: 'tiles' },
      tile(found.per_second.toFixed(2), 'queries per second, last minute'),
      tile(String(found.in_flight), 'in flight'),
      arm('policy', policy), control.queries ? arm('control', control) : null),
  ];
}

function sentence({ cohorts: { policy, control }, uplift, queries, pinned }) {
  if (!queries) return 'No query yet. Ask one, or send one to /v1/chat/completions.';
  if (!policy.accuracy) return pinned === queries ? 'Every query asked for a configuration by name, so the policy has chosen nothing yet.' : 'No graded answers yet: send a reference with a question, or give feedback.';
  if (!control.queries) return `The policy answers ${percent(policy.accuracy.mean)} of ${policy.accuracy.n} graded questions correctly. There is no control group to compare with; the policy's option control_share makes one.`;
  return uplift.sentence;
}

const spread = (found, shown) => (found ? ` (${shown(found.low)} to ${shown(found.high)}, n = ${found.n})` : '');

function changes(marks) {
  if (!marks.length) return [];
  const last = marks.map((mark, at) => el('li', { value: at + 1 }, `${clock(mark.at)} ${mark.what}`)).slice(-8);
  return [el('h2', {}, 'Changes'), el('ol', { class: 'marks' }, last)];
}

function chosenFor(found, kind) {
  if (!found.length) return null;
  const name = (of) => of ?? `no ${kind} given`;
  // Numbers in their order; words as they come, the most frequent first.
  if (found.every((g) => g.of === null || /^\d+$/.test(g.of))) found = [...found].sort((a, b) => (a.of ?? Infinity) - (b.of ?? Infinity));
  const often = (group) => group.choices.map((c) => `${c.action} (${percent(c.queries / group.queries)})`).join(', ');
  return [el('h2', {}, `Chosen by ${kind}`),
    table(`Chosen by ${kind}`, [titled(kind), 'Queries', 'Most often', 'Accuracy', `Mean ${inUnit()}`],
      found.map((g) => [name(g.of), String(g.queries), el('td', { class: 'text' }, often(g)), percent(g.accuracy?.mean), cost(g.cost?.mean)]))];
}

// Of the first two keys, the second's values down, the first's across. In each cell what is chosen most often, and how often.
function crossed(cells, [first, second]) {
  if (!cells.length) return [];
  const down = [...new Set(cells.map((c) => c.of[1]))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const across = [...new Set(cells.map((c) => c.of[0]))];
  const cell = (one, two) => {
    const found = cells.find((c) => c.of[0] === one && c.of[1] === two);
    return found ? el('td', {}, `${found.action} (${percent(found.share)})`, el('small', {}, `${found.accuracy ? `${percent(found.accuracy.mean)} right, ` : ''}n = ${found.queries}`)) : null;
  };
  return [el('h2', {}, `Chosen by ${first} and ${second}`),
    table(`Chosen by ${first} and ${second}`, [titled(second), ...across], down.map((two) => [two, ...across.map((one) => cell(one, two))]))];
}

const titled = (word) => word[0].toUpperCase() + word.slice(1);

function tables(found, latest) {
  return [
    el('h2', {}, 'What the policy chooses'),
    found.choices.length
      ? table('What the policy chooses', ['Configuration', 'Queries', 'Accuracy', `Mean ${inUnit()}`],
        found.choices.map((c) => [c.action, String(c.queries), percent(c.accuracy?.mean), cost(c.cost?.mean)]))
      : el('p', { class: 'quiet' }, 'Nothing yet.'),
    ...crossed(found.crossed, found.group_by),
    ...[...found.group_by, 'objective'].flatMap((kind) => chosenFor(found.by[kind], kind) ?? []),
    el('h2', {}, 'Models'),
    table('Models', ['Model', 'Group', 'State'], found.models.map((m) => [m.name, m.group, state(m)])),
    ...(found.services.length ? [el('h2', {}, 'Services'),
      table('Services', ['Service', 'Workers', 'Waiting records'], found.services.map((r) => [r.service, workers(r.workers), r.waiting === null ? null : String(r.waiting)]))] : []),
    el('h2', {}, 'Latest queries'),
    latest.length ? list(latest) : el('p', { class: 'quiet' }, 'Nothing yet: ask something.'),
  ];
}

const STATES = { ready: ['good', 'serving'], loading: ['warn', 'loading'], suspended: ['bad', 'suspended'], failed: ['bad', 'failed'], silent: ['bad', 'no executor'] };

function state(model) {
  const [kind, words] = STATES[model.state];
  return el('td', { class: 'text' }, el('span', { class: kind }, words), model.why ? `: ${model.why}` : '');
}

const workers = (count) => (count === 0 ? el('span', { class: 'bad' }, 'none') : count === null ? null : String(count));

export function list(queries) {
  return table('Queries', ['Time', 'Question', 'Configuration', 'Status', 'Right', inUnit()], queries.map((q) => [
    clock(q.created),
    el('td', { class: 'text' }, el('a', { href: `#query/${encodeURIComponent(q.id)}` }, q.question || q.id)),
    q.action, q.status, right(q.correct), cost(q[named()]),
  ]));
}

export const right = (correct) => (correct === null ? '–' : el('span', { class: correct >= 0.5 ? 'good' : 'bad' }, correct === 1 ? 'yes' : correct === 0 ? 'no' : percent(correct)));
