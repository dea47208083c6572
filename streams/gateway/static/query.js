// One query: what was chosen and why, the search, the answer, its price, and feedback.

import { get, post } from '/static/api.js';
import { cost, counted, el, inUnit, table } from '/static/dom.js';
import { drawTree, legend, listed } from '/static/tree.js';
import { list, right } from '/static/now.js';

export async function query(view, id) {
  const input = el('input', { type: 'text', id: 'query-id', value: id ?? '', autocomplete: 'off' });
  const form = el('form', { onsubmit: (event) => { event.preventDefault(); location.hash = `#query/${encodeURIComponent(input.value.trim())}`; } },
    el('label', { for: 'query-id' }, 'Id of a query'), el('div', { class: 'row' }, input, el('button', { class: 'main' }, 'Show')));
  const body = el('div');
  view.replaceChildren(el('h2', {}, 'One query'), form, body);
  if (!id) {
    const latest = await get('/v1/queries?limit=50');
    body.append(latest.data.length ? list(latest.data) : el('p', { class: 'quiet' }, 'Nothing yet.'));
    return undefined;
  }
  const show = async () => body.replaceChildren(...story(await get(`/v1/queries/${encodeURIComponent(id)}`), show));
  await show();
  return undefined;
}

export function story(found, again) {
  const parts = [];
  if (found.decision) parts.push(el('h2', {}, 'Why this configuration'), el('p', {}, why(found.decision)), runners(found.decision));
  if (found.answer) {
    parts.push(el('h2', {}, 'Answer'), el('pre', { tabindex: '0' }, found.answer.text ?? found.answer.error ?? 'none'));
    parts.push(el('p', {}, `Status ${found.answer.status}${found.answer.score === null ? (found.answer.text ? ', no verifier scored it' : '') : `, verifier's score ${found.answer.score.toFixed(3)}`}${found.answer.error ? `: ${found.answer.error}` : ''}. `, found.reward ? el('span', {}, 'Right: ', right(found.reward.correct)) : ''));
    parts.push(feedback(found.id, again));
    if (found.answer.eflops) parts.push(el('h2', {}, 'Price, eFLOPs'), price(found.answer.eflops));
    if (found.answer.usd) parts.push(el('h2', {}, 'Price, USD'), billed(found.answer));
    parts.push(el('h2', {}, 'Time, seconds'), time(found.answer.timings));
  } else parts.push(el('p', { class: 'quiet' }, 'No answer yet.'));
  if (found.search?.length) parts.push(el('h2', {}, 'Search'), legend(), drawTree(found.search), listed(found.search));
  return parts;
}

export function why(decision) {
  counted(decision.objective.unit);
  const out = decision.candidates > 1 ? ` out of ${decision.candidates} configurations` : '';
  const seconds = [`${decision.action} was chosen${out}`];
  const reasons = { policy: 'by the policy', 'warm-up': 'at random, because the policy is still warming up', floor: 'at random, by the exploration floor', pinned: 'because the request asked for it', control: 'because the query is in the control group', baseline: 'as the baseline, because nobody has said of any answer yet whether it is right', session: 'because its conversation keeps it' };
  seconds.push(reasons[decision.reason] ?? decision.reason);
  if (decision.mean !== null && decision.width !== null) seconds.push(`with an expected reward of ${decision.mean.toFixed(3)} ± ${decision.width.toFixed(3)}`);
  return `${seconds.join(' ')}, for ${purpose(decision.objective)}.${second(decision)}`;
}

function second({ action, mean, width, runners_up: [next] }) {
  if (!next) return '';
  if (next.action === action || mean === null) return '';
  const gap = next.mean - mean;
  const explored = gap > 0 && next.width < width ? ', but it is better known, so there was less to learn from it' : '';
  return ` The runner-up was ${next.action}, with ${next.mean.toFixed(3)} ± ${next.width.toFixed(3)}: ${Math.abs(gap).toFixed(3)} ${gap > 0 ? 'more' : 'less'}${explored}.`;
}

function purpose(objective) {
  if (objective.name) return `the objective ${objective.name}`;
  if (objective.aim === 'mean_cost') return `a mean cost of ${cost(objective.mean_cost)} ${inUnit()}`;
  if (objective.aim === 'accuracy') return `${(100 * objective.accuracy).toFixed(0)} % of the accuracy within reach`;
  const { correct, score, cost } = objective.weights;
  return `weights of ${correct.toFixed(2)} for correctness, ${score.toFixed(2)} for the score and ${cost.toFixed(2)} for cost`;
}

function runners(decision) {
  if (!decision.runners_up.length) return '';
  return table('Runners-up', ['Runner-up', 'Expected reward', 'Width', 'Score'],
    decision.runners_up.map((c) => [c.action, c.mean.toFixed(3), c.width.toFixed(3), c.score.toFixed(3)]));
}

const billed = ({ usd, usage }) => table('Price', ['Prompt tokens', 'Of them cached', 'Generated tokens', 'USD'],
  [[String(usage.prompt_tokens), String(usage.prompt_tokens_details.cached_tokens), String(usage.completion_tokens), usd.toPrecision(3)]]);

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

export function feedback(id, again) {
  const said = el('span', { role: 'status' });
  const give = (value) => async () => {
    try {
      const answer = await post('/v1/feedback', { id, value });
      said.textContent = answer.duplicate ? 'You have given feedback before.' : answer.late === null ? 'Noted. The policy learns from it if the reward is still open.' : answer.late ? 'Noted, but too late for the policy to learn from it: the reward had closed. Ask with feedback_wait_s to have more time.' : 'Thank you. The policy learns from it.';
      if (again) setTimeout(() => again().catch(() => {}), 1500);
    } catch (error) { said.textContent = error.message; }
  };
  return el('div', { class: 'row' }, 'Was it right?',
    el('button', { type: 'button', onclick: give(true) }, 'Right'), el('button', { type: 'button', onclick: give(false) }, 'Wrong'), said);
}
