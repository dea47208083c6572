// Inspect: one query's answer, why its configuration was chosen, its search or its attempts, its price, and feedback.

import { get, post } from '/static/api.js';
import { cost, counts, el, inUnit, named, percent, predictedShare, svg, table } from '/static/dom.js';
import { asked, filters } from '/static/filters.js';
import { list, right } from '/static/overview.js';
import { drawTree, legend, listed } from '/static/tree.js';

export async function inspect(view, id) {
  const input = el('input', { type: 'text', id: 'query-id', value: id ?? '', autocomplete: 'off' });
  const form = el('form', { onsubmit: (event) => { event.preventDefault(); location.hash = `#inspect/${encodeURIComponent(input.value.trim())}`; } },
    el('label', { for: 'query-id' }, 'Id of a query'), el('div', { class: 'row' }, input, el('button', { class: 'main' }, 'Show')));
  const body = el('div');
  if (id) {
    const show = async () => {
      const found = await get(`/v1/queries/${encodeURIComponent(id)}`);
      const question = found.decision ? [el('h3', {}, 'Question'), el('pre', { tabindex: '0' }, found.decision.question)] : [];
      body.replaceChildren(...question, ...story(found, show));
    };
    view.replaceChildren(el('h2', {}, 'Inspect'), form, body);
    return show();
  }
  const chosen = filters(() => refresh());
  const refresh = async () => {
    const { data, unit, values } = await get(`/v1/queries?${asked({ limit: 100 })}`);
    counts(unit);
    chosen.show(values);
    body.replaceChildren(data.length ? list(data) : el('p', { class: 'next' }, 'No such query. ', el('a', { href: '#ask' }, 'Ask a question'), ', or change the filters.'));
  };
  view.replaceChildren(el('h2', {}, 'Inspect'), form, chosen.place, body);
  return refresh();
}

export function story({ id, decision, answer, search = [], reward }, again) {
  if (decision) counts(decision.objective.unit);
  const parts = [];
  if (answer) {
    const verdict = answer.score === null ? (answer.text ? 'no verifier scored it' : null) : `verifier's score ${answer.score.toFixed(3)}`;
    const spent = [`Status ${answer.status}`, verdict, `${cost(total(answer))} ${inUnit()}`, answer.timings.total_s === undefined ? null : `${answer.timings.total_s.toFixed(2)} s`];
    parts.push(el('h3', {}, 'Answer'), el('pre', { tabindex: '0' }, answer.text ?? answer.error ?? 'none'),
      el('p', {}, `${spent.filter(Boolean).join(', ')}. `, reward ? el('span', {}, 'Right: ', right(reward.correct)) : ''), feedback(id, again));
  } else parts.push(el('p', { class: 'quiet' }, 'No answer yet.'));
  if (decision) parts.push(el('h3', {}, 'Why this configuration'), el('p', {}, why(decision)), runners(decision));
  if (answer && (answer.earlier.length || search.length < 2)) parts.push(el('h3', {}, 'Attempts'), attempts(answer));
  if (search.length > 1) parts.push(el('h3', {}, 'Search'), legend(), drawTree(search), listed(search));
  if (answer?.eflops) parts.push(el('h3', {}, 'Price, eFLOPs'), price(answer.eflops));
  if (answer?.usd) parts.push(el('h3', {}, 'Price, USD'), billed(answer));
  if (answer) parts.push(el('h3', {}, 'Time, seconds'), time(answer.timings));
  return parts;
}

const last = ({ eflops, usd }) => eflops?.total ?? usd;
const total = (answer) => (answer.earlier.length ? answer.earlier.reduce((sum, each) => sum + each.cost, last(answer) ?? 0) : last(answer));

function attempts(answer) {
  const rows = answer.earlier.map((each) => [String(each.attempt), each.action, el('td', { class: 'text' }, [each.cause, each.error].filter(Boolean).join(': ') || 'failed'), cost(each.cost)]);
  rows.push([String(answer.attempts), answer.action, el('td', { class: 'text' }, answer.error ?? (answer.complete ? 'answered' : `${answer.status}, not complete`)), cost(last(answer))]);
  return table('Attempts', ['Attempt', 'Configuration', 'What became of it', inUnit()], rows);
}

const REASONS = { policy: 'by the policy', 'warm-up': 'at random, because the policy is still warming up', floor: 'at random, by the exploration floor', pinned: 'because the request asked for it', control: 'because the query is in the control group', baseline: 'as the baseline, because no answer has been graded yet', session: 'because its conversation keeps it' };

function why(decision) {
  const out = decision.candidates > 1 ? ` out of ${decision.candidates} configurations` : '';
  const expected = decision.mean !== null && decision.width !== null ? ` with an expected reward of ${decision.mean.toFixed(3)} ± ${decision.width.toFixed(3)}` : '';
  const predicted = decision.predicted ? ` ${foreseen(decision.predicted)}` : '';
  const shown = decision.features.length ? ` Besides its text, the request showed ${decision.features.join(', ')}.` : '';
  return `${decision.action} was chosen${out} ${REASONS[decision.reason] ?? decision.reason}${expected}, for ${purpose(decision.objective)}.${predicted}${second(decision)}${worth(decision.objective)}${shown}`;
}

const foreseen = (predicted) => `Its predicted accuracy was ${predictedShare(predicted.correct)}, typically at ${cost(predicted[named()])} ${inUnit()}.`;
const worth = ({ price }) => (price ? ` At the price in force, a right answer is worth ${cost(1 / price)} ${inUnit()}.` : '');

function second({ action, mean, width, runners_up: [next] }) {
  if (!next || next.action === action || mean === null) return '';
  const gap = next.mean - mean;
  const explored = gap > 0 && next.width < width ? ', but it is better known, so there was less to learn from it' : '';
  return ` The runner-up was ${next.action}, with ${next.mean.toFixed(3)} ± ${next.width.toFixed(3)}: ${Math.abs(gap).toFixed(3)} ${gap > 0 ? 'more' : 'less'}${explored}.`;
}

function purpose(objective) {
  if (objective.name) return `the objective ${objective.name}`;
  if (objective.aim === 'mean_cost') return `a mean cost of ${cost(objective.mean_cost)} ${inUnit()}`;
  if (objective.aim === 'accuracy') return `${percent(objective.accuracy)} of the accuracy within reach`;
  const { correct, score, cost: price } = objective.weights;
  return `weights of ${correct.toFixed(2)} for correctness, ${score.toFixed(2)} for the score and ${price.toFixed(2)} for cost`;
}

function runners(decision) {
  if (!decision.runners_up.length) return '';
  const rows = decision.runners_up.map((c) => [c.action, c.predicted ? predictedShare(c.predicted.correct) : null,
    c.predicted ? cost(c.predicted[named()]) : null, c.mean.toFixed(3), c.width.toFixed(3), c.score.toFixed(3)]);
  return table('Runners-up', ['Runner-up', 'Predicted accuracy', `Predicted ${inUnit()}`, 'Expected reward', 'Width', 'Ranked by'], rows);
}

const billed = ({ usd, usage }) => table('Price', ['Prompt tokens', 'Of them cached', 'Generated tokens', 'USD'],
  [[String(usage.prompt_tokens), String(usage.prompt_tokens_details.cached_tokens), String(usage.completion_tokens), cost(usd)]]);

const price = (parts) => table('Price', ['Prefill', 'Decoding', 'Verification', 'Total'],
  [[cost(parts.prefill), cost(parts.decoding), cost(parts.verifier), cost(parts.total)]]);

const COMPONENTS = {
  admission_s: 'Admission', embed_s: 'Embedding', decide_s: 'Decision', queue_s: 'Queue', generate_s: 'Generation', verify_s: 'Verification',
  transit_s: 'To the verifier and back', control_s: 'Search control', rest_s: 'Between services', total_s: 'Total',
};

const time = (timings) => {
  const known = Object.keys(COMPONENTS).filter((name) => name in timings);
  return table('Time', known.map((name) => COMPONENTS[name]), [known.map((name) => timings[name].toFixed(3))]);
};

const NOTED = new Map([[null, 'Noted. The policy learns from it if the reward is still open.'], [false, 'Thank you. The policy learns from it.'],
  [true, 'Noted, but too late for the policy to learn from it: the reward had closed. Ask with feedback_wait_s to have more time.']]);

function feedback(id, again) {
  const said = el('span', { role: 'status' });
  const thumb = (value) => el('button', { type: 'button', 'aria-pressed': 'false', onclick: async ({ currentTarget: pressed }) => {
    try {
      const given = await post('/v1/feedback', { id, value });
      said.textContent = given.duplicate ? 'You have given feedback before.' : NOTED.get(given.late);
      if (!given.duplicate) pressed.setAttribute('aria-pressed', 'true');
      if (again) setTimeout(() => again().catch(() => {}), 4000);
    } catch (error) { said.textContent = error.message; }
  } }, svg('svg', { width: 16, height: 16, viewBox: '0 0 24 24', 'aria-hidden': 'true' }, svg('path', { fill: 'currentColor', transform: value ? '' : 'rotate(180 12 12)', d: 'M2 10h4v11H2zM8 10l4-8c2 0 3 1 3 3l-1 4h6c1.5 0 2.3 1.2 2 2.5l-2 8c-.3 1-1 1.5-2 1.5H8z' })), value ? ' Right' : ' Wrong');
  return el('div', { class: 'row' }, 'Was it right?', thumb(true), thumb(false), said);
}
