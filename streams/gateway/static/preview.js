// What would run, and its alternatives: asked again at every change of the question, the slider or the model. Nothing runs
// for it until an alternative is clicked.

import { Refused, post } from '/static/api.js';
import { cost, counts, el, inUnit, named, percent, predictedShare, replace, table } from '/static/dom.js';

const PAUSE_MS = 150;

// `body` returns the request as it stands, or null while there is no question; `run` asks a configuration by name.
export function preview(body, run) {
  const words = el('p', { id: 'preview', 'aria-live': 'polite' });
  const compared = el('div', { hidden: true });
  const rests = el('details', { hidden: true }, el('summary', {}, 'What the prediction rests on'));
  const place = el('div', { class: 'preview' }, words, compared, rests);
  let timer = null, running = null;
  const show = async () => {
    running?.abort();
    const request = body();
    if (!request) {
      words.replaceChildren(el('span', { class: 'quiet' }, 'Type a question to see which configuration would run.'));
      compared.hidden = rests.hidden = true;
      return;
    }
    const mine = running = new AbortController();
    try {
      const found = await post('/v1/decide', request, { signal: mine.signal });
      if (mine !== running) return;
      words.replaceChildren(...explain(found));
      replace(compared, [el('h3', {}, 'Alternatives'), configurations(found, run)]);
      compared.hidden = found.configurations.length < 2;
      rests.replaceChildren(rests.firstChild, grounds(found));
      rests.hidden = !found.grounds.length;
    } catch (error) {
      if (mine !== running || error.name === 'AbortError') return;
      const why = error instanceof Refused ? error.message : 'The gateway does not answer.';
      words.replaceChildren(el('span', { class: 'quiet' }, `No preview: ${why}`));
      compared.hidden = rests.hidden = true;
    }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(show, PAUSE_MS); };
  show();
  return { place, soon, end: () => { clearTimeout(timer); running?.abort(); } };
}

// The choice in words: what, why, and what came second.
function explain(found) {
  counts(found.objective.unit);
  const { choice, runner_up: second } = found;
  const learned = found.policy.version > 0 || found.prior !== '';
  const said = [el('b', {}, found.action)];
  if (found.reason === 'pinned') said.push(' runs, because you chose it');
  else if (found.reason === 'baseline') said.push(' runs as the baseline: no answer has been graded yet, so the policy does not choose. Send references or feedback');
  else if (found.reason === 'warm-up') said.push(` is what the policy would prefer, but it is warming up: any of ${found.candidates} configurations runs, each with the same chance`);
  else said.push(` would run, out of ${found.candidates} configurations`);
  said.push(learned && choice.predicted ? `: ${terms(choice)}.` : '.');
  if (!learned) said.push(' Nothing is learned yet.');
  else if (found.reason !== 'pinned') said.push(` ${reward(choice)}.`);
  if (learned && second) said.push(` The runner-up is ${second.action}${second.predicted ? `: ${terms(second)}` : ''}; it ranks ${(choice.score - second.score).toPrecision(2)} lower.`);
  if (found.reason === 'policy' && choice.propensity !== null && choice.propensity < 0.995) said.push(` In ${percent(1 - choice.propensity)} of cases another one runs, to explore or as the control group.`);
  if (found.shortfall !== null && found.objective.mean_cost) said.push(` The target of ${cost(found.objective.mean_cost)} ${inUnit()} a query cannot be met: recent queries cost ${cost(found.shortfall)} at least.`);
  else if (found.shortfall !== null) said.push(` The target of ${percent(found.objective.accuracy)} of the accuracy within reach cannot be met: ${percent(found.shortfall)} can be had on recent queries.`);
  if (found.features.length) said.push(` Besides its text, the request shows ${found.features.join(', ')}.`);
  if (!found.served) said.push(' No executor serves it now, so the question would wait.');
  for (const [model, drift] of Object.entries(found.drifted)) said.push(el('span', { class: 'drift' }, noticed(model, drift)));
  return said;
}

// What the policy noticed of a model that is no longer what was learned.
function noticed(model, { cost, accuracy_seq: since }) {
  const both = [];
  if (cost !== 1) both.push(`its searches cost ${cost.toPrecision(2)} times what was learned`);
  if (since !== null) both.push('its accuracy has changed and is being relearned');
  return `⚠ ${model}: ${both.join('; ')}.`;
}

const terms = ({ predicted }) => `predicted accuracy ${predictedShare(predicted.correct)} at about ${cost(predicted[named()])} ${inUnit()}`;
const reward = ({ mean, width }) => `Its expected reward is ${mean.toFixed(3)} ± ${Math.abs(width).toFixed(3)}`;

// The best configuration of each model, and the next ones of the chosen model, because near duplicates say little.
function alternatives({ configurations: all, action }) {
  const model = (c) => c.action.split('/')[0];
  const others = all.filter((c) => c.action !== action), chosen = action.split('/')[0];
  return others.filter((c, at) => model(c) !== chosen && others.findIndex((each) => model(each) === model(c)) === at)
    .concat(others.filter((c) => model(c) === chosen).slice(0, 2)).sort((a, b) => b.score - a.score);
}

function configurations(found, run) {
  const rows = alternatives(found).map((c) => [
    el('button', { type: 'button', 'aria-label': `Ask ${c.action}`, onclick: () => run(c.action) }, 'Ask'), c.action,
    c.predicted ? predictedShare(c.predicted.correct) : null, c.predicted ? cost(c.predicted[named()]) : null,
    c.mean.toFixed(3), Math.abs(c.width).toFixed(3), c.propensity === null ? null : percent(c.propensity)]);
  return table('Alternatives', ['Ask', 'Configuration', 'Predicted accuracy', `Predicted ${inUnit()}`, 'Expected reward', 'Width', 'Chance'], rows);
}

function grounds(found) {
  const rows = found.grounds.map((each) => [each.part, signed(each.mean), each.variance.toPrecision(2)]);
  return table(`The predicted accuracy of ${found.action}`, ['Part of the model', 'Adds to the accuracy', 'Adds to its variance'], rows);
}

const signed = (value) => `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(3)}`;
