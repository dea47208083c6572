// Overview: what choosing saves, where choices go, what they cost, what waits and what failed.

import { get } from '/static/api.js';
import { charts } from '/static/charts.js';
import { choices } from '/static/choices.js';
import { clock, cost, counted, counts, el, inUnit, named, percent, points, replace, table } from '/static/dom.js';
import { asked, filtered, filters, unfiltered } from '/static/filters.js';

const EVERY_MS = 3000;
export const FAILED = 'failed,expired,rejected';

export async function overview(view) {
  const drawn = charts(), chosen = filters(() => again());
  const parts = { said: el('p', { role: 'status', class: 'bad' }), lead: el('div'), marks: el('div'), where: el('div'), rest: el('div') };
  view.replaceChildren(el('h2', {}, 'Overview'), chosen.place, parts.said, parts.lead, drawn.place, parts.marks, parts.where, parts.rest);
  let seen = null, turn = 0;
  const refresh = async () => {
    const mine = ++turn;
    const [found, latest, failed] = await Promise.all([
      get(`/v1/now?${asked()}`), get(`/v1/queries?${asked({ limit: 10 })}`), get(`/v1/queries?${asked({ limit: 5, status: FAILED })}`)]);
    if (mine !== turn) return; // a filter has changed meanwhile
    seen = Date.now() / 1000;
    counts(found.unit);
    parts.said.textContent = '';
    chosen.show(latest.values);
    replace(parts.lead, lead(found, again));
    drawn.show(found);
    replace(parts.marks, changes(found.marks));
    const where = () => parts.where.replaceChildren(...choices(found, where).filter(Boolean));
    if (!parts.where.contains(document.activeElement)) where(); // an open list of groupings stays open
    replace(parts.rest, [models(found), el('div', { class: 'halves' }, waiting(found), failing(found, failed.data)), el('h2', {}, 'Latest queries'),
      latest.data.length ? list(latest.data) : el('p', { class: 'quiet' }, 'None yet.')]);
  };
  const again = () => refresh().catch((error) => { parts.said.textContent = `What is shown is from ${clock(seen)}: ${error.status ? error.message : 'the gateway does not answer'}.`; });
  await refresh();
  const timer = setInterval(() => { if (!document.hidden) again(); }, EVERY_MS);
  return () => { clearInterval(timer); drawn.end(); };
}

// The saving with its interval and its baseline or, where it is not known yet, what to do for it.
function lead(found, again) {
  const { cohorts: { policy, control }, uplift, queries, pinned } = found;
  if (!queries && filtered()) return [next('No query matches these filters.', el('button', { type: 'button', onclick: () => { unfiltered(); again(); } }, 'Clear the filters'))];
  if (!queries && !found.models.some((model) => model.state === 'ready')) return [next('No model is ready yet.', 'Loading them takes up to a minute after a start, and questions wait for them. If it takes longer, the log of the services says why.')];
  if (!queries) return [next('Nothing has been asked yet.', el('a', { href: '#ask' }, 'Ask a question'), ' here, or send one from a program to ', el('code', {}, `${location.origin}/v1/chat/completions`), ', with the model ', el('code', {}, 'auto'), '.')];
  if (pinned === queries) return [next('Every query named its configuration, so nothing was chosen.', 'Send the model ', el('code', {}, 'auto'), '.')];
  const arms = el('div', {}, el('div', { class: 'tiles' }, arm('The policy', policy), control.queries ? arm('The baseline', control) : null),
    pinned ? el('p', { class: 'quiet' }, `${counted(pinned, 'query', 'queries')} not counted here: ${pinned === 1 ? 'it' : 'they'} named ${pinned === 1 ? 'its' : 'their'} own configuration.`) : null);
  if (!policy.accuracy) return [next('No answer has been graded yet, so the policy learns only what answers cost.', 'Send the right answer along as ', el('code', {}, 'uniscale.reference'), ', or judge answers: ', el('a', { href: '#inspect' }, 'open one'), ' and press Right or Wrong.'), arms];
  if (!control.queries) {
    const dearest = found.choices.reduce((most, each) => ((each.cost?.mean ?? 0) > (most.cost?.mean ?? 0) ? each : most));
    return [next('There is no baseline yet, so nobody can say what is saved.', 'Give a twentieth of the queries one fixed configuration: ',
      el('code', {}, `UNISCALE_POLICY_OPTIONS='{"control_share": 0.05, "control_action": "${dearest.action}"}'`)), arms];
  }
  const { cost_ratio: ratio, accuracy_difference: gain } = uplift;
  if (!ratio || !gain) return [next(`Too few outcomes yet to compare with ${uplift.control}.`, 'Each side needs twenty with a known cost, and some that were judged.'), arms];
  const low = ratio.high === null ? null : 1 - ratio.high, high = 1 - ratio.low, saved = 1 - ratio.mean;
  return [el('div', { class: 'lead' },
    el('p', {}, el('b', {}, percent(Math.abs(saved))), ` ${saved < 0 ? 'more spent' : 'of the cost saved'} against ${uplift.control}`, el('span', {}, low === null ? `95 % interval: at most ${percent(high)} saved` : `95 % interval: ${percent(low)} to ${percent(high)} saved`)),
    el('p', {}, el('b', {}, points(gain.mean)), ' points of accuracy against the same', el('span', {}, `95 % interval: ${points(gain.low)} to ${points(gain.high)}`))),
  low === null || (low < 0 && high > 0) ? el('p', { class: 'warn' }, 'The interval of the saving includes 0, so the saving is not certain yet.') : null,
  uplift.moves ? el('p', { class: 'warn' }, `Only the latest ${queries} queries count, so an interval is valid for one look, not for repeated ones.`) : null,
  arms];
}

const next = (what, ...how) => el('div', { class: 'next' }, el('p', {}, el('b', {}, what)), el('p', {}, how));

function arm(name, group) {
  return el('div', { class: 'tile' }, el('span', {}, name), el('b', {}, `${percent(group.accuracy?.mean)} right`), el('b', {}, `${cost(group.cost?.mean)} ${inUnit()}`),
    el('span', {}, `a query on average, of ${counted(group.queries, 'query', 'queries')}${group.accuracy && group.accuracy.n < group.queries ? `, ${group.accuracy.n} judged` : ''}`));
}

function changes(marks) {
  if (!marks.length) return [];
  return [el('details', {}, el('summary', {}, `${counted(marks.length, 'change')} of models and objectives`),
    el('ol', { class: 'marks' }, marks.map((mark, at) => el('li', { value: at + 1 }, `${clock(mark.at)} ${mark.what}`))))];
}

const STATES = { ready: ['good', 'serving'], loading: ['warn', 'loading'], suspended: ['bad', 'suspended'], failed: ['bad', 'failed'], silent: ['bad', 'no executor'] };

// What each model answers and costs: the choices of its configurations together.
function models(found) {
  const sum = (group, of) => group.reduce((total, each) => total + of(each), 0);
  const total = (group) => ({ queries: sum(group, (c) => c.queries), spent: sum(group, (c) => (c.cost ? c.cost.mean * c.cost.n : 0)), costed: sum(group, (c) => c.cost?.n ?? 0),
    right: sum(group, (c) => (c.accuracy ? c.accuracy.mean * c.accuracy.n : 0)), judged: sum(group, (c) => c.accuracy?.n ?? 0) });
  const all = total(found.choices);
  const cells = (mine) => (!mine.queries ? ['–', '–', '–', '–'] : [
    el('td', { class: 'bar', share: mine.queries / all.queries }, `${mine.queries} (${percent(mine.queries / all.queries)})`),
    el('td', { class: 'bar', share: mine.spent / (all.spent || 1) }, `${cost(mine.spent)} (${percent(all.spent ? mine.spent / all.spent : 0)})`),
    mine.costed ? cost(mine.spent / mine.costed) : null, mine.judged ? percent(mine.right / mine.judged) : null]);
  const state = ({ state: is, why }) => el('td', { class: 'text' }, el('span', { class: STATES[is][0] }, STATES[is][1]), why ? `: ${why}` : '');
  return [el('h2', {}, 'Models, and what they cost'),
    table('Models', ['Model', 'State', 'Queries', `${inUnit()} in all`, 'Mean', 'Right'],
      found.models.map((model) => [model.name, state(model), ...cells(total(found.choices.filter((c) => c.action?.startsWith(`${model.name}/`))))]),
      [el('th', { scope: 'row' }, 'All choices'), '', ...cells(all)])];
}

function waiting(found) {
  const behind = found.services.filter((service) => service.waiting || service.workers === 0);
  return el('section', {}, el('h2', {}, 'What waits'),
    el('p', {}, `${counted(found.in_flight, 'query', 'queries')} in flight; ${(60 * found.per_second).toFixed(0)} came in the last minute.`),
    behind.length ? el('ul', {}, behind.map((s) => el('li', {}, `${s.service}: ${s.waiting === null ? 'unknown' : counted(s.waiting, 'record')} waiting`, s.workers === 0 ? el('span', { class: 'bad' }, ', no worker') : '')))
      : found.services.length ? el('p', { class: 'quiet' }, `None of the ${found.services.length} services is behind.`) : null);
}

function failing({ statuses, dead_letters: dead, queries }, latest) {
  const kinds = FAILED.split(',').filter((status) => statuses[status]);
  return el('section', {}, el('h2', {}, 'What failed'),
    el('p', {}, kinds.length ? el('span', { class: 'bad' }, kinds.map((status) => `${statuses[status]} ${status}`).join(', ')) : 'Nothing', queries ? `, of ${counted(queries, 'query', 'queries')}.` : '.'),
    latest.length ? el('ul', {}, latest.map((each) => el('li', {}, link(each), ` ${each.error ?? each.status}`))) : null,
    dead ? el('p', { class: 'bad' }, `${counted(dead, 'record')} could not be handled.`) : null,
    latest.length || dead ? el('p', {}, el('a', { href: '#failures' }, 'All failures')) : null);
}

const short = (text) => (text.length > 100 ? `${text.slice(0, 99)}…` : text);
const link = (each) => el('a', { href: `#inspect/${encodeURIComponent(each.id)}` }, short(each.question || each.id));

export function list(queries, error = false) {
  return table('Queries', ['Time', 'Question', 'Configuration', 'Status', error ? 'Why' : 'Right', inUnit()], queries.map((q) => [
    clock(q.created), el('td', { class: 'text' }, link(q)), q.action, q.status, error ? el('td', { class: 'text' }, q.error ?? '–') : right(q.correct), cost(q[named()])]));
}

export const right = (correct) => (correct === null ? '–' : el('span', { class: correct >= 0.5 ? 'good' : 'bad' }, correct === 1 ? 'yes' : correct === 0 ? 'no' : percent(correct)));
