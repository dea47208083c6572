// Ask: a question, how much to spend on it, what would run and why, and the answers, each with its search while it runs.

import { ask as send, get } from '/static/api.js';
import { el } from '/static/dom.js';
import { story } from '/static/inspect.js';
import { preview } from '/static/preview.js';
import { drawTree, legend } from '/static/tree.js';

const PIN = /\/\d+\/\d+\/\d+$/;
const options = (models) => models.map((m) => el('option', { value: m.id }, m.id));

export async function ask(view) {
  const models = (await get('/v1/models')).data;
  const text = el('textarea', { id: 'question', rows: 3, required: true, placeholder: 'How much is 9 times 7?' });
  const slider = el('input', { type: 'range', id: 'spend', min: 0, max: 100, value: 50 });
  const usual = 'the deployment\'s default objective; move the slider for weights of your own', goal = el('output', { for: 'spend', class: 'quiet' }, usual);
  let moved = false;
  const model = el('select', { id: 'model' }, options(models.filter((m) => !PIN.test(m.id))),
    el('optgroup', { label: 'Configurations' }, options(models.filter((m) => PIN.test(m.id)))));
  const reference = el('input', { type: 'text', id: 'reference', autocomplete: 'off' });
  const button = el('button', { class: 'main' }, 'Ask');
  const stop = el('button', { type: 'button', disabled: true }, 'Stop');
  const status = el('p', { role: 'status', class: 'quiet' }), answers = el('div');
  let running = null, events = null;
  const body = (named = model.value) => request(text.value, moved ? slider.value : null, named, reference.value);
  const run = async (named) => {
    if (running || !text.value.trim()) return;
    button.disabled = true; stop.disabled = false; running = new AbortController();
    const answer = el('pre', { tabindex: '0' }), search = el('div'), heading = el('h2', {}, 'Answer');
    const mine = el('article', {}, heading, answer, search);
    answers.prepend(mine);
    status.textContent = 'Waiting for the decision …';
    let id = null;
    try {
      await send(body(named), {
        signal: running.signal,
        onId: (query, action) => { id = query; heading.textContent = `Answer of ${action}`; status.textContent = `Running ${action} …`; events = watch(query, search); },
        onText: (piece) => { answer.textContent += piece; },
      });
      const show = async () => {
        const found = await get(`/v1/queries/${encodeURIComponent(id)}`);
        heading.textContent = `Answer of ${found.answer?.action ?? 'nothing'}`; // another model's, if the first one failed
        mine.replaceChildren(heading, ...story(found, show));
      };
      await show();
      status.textContent = '';
      ahead.soon();
    } catch (error) {
      mine.remove();
      status.textContent = error.name === 'AbortError' ? 'Stopped: the search is cancelled.' : error.message;
    } finally {
      events?.close(); running = null; button.disabled = false; stop.disabled = true;
    }
  };
  const ahead = preview(() => (text.value.trim() ? body() : null), run);
  slider.addEventListener('input', () => {
    const { correct, score, cost } = weights(slider.value);
    moved = true;
    goal.textContent = `weights of your own: ${correct.toFixed(2)} for correctness, ${score.toFixed(2)} for the score, ${cost.toFixed(2)} for cost`;
  });
  for (const input of [text, slider, model]) input.addEventListener('input', ahead.soon);
  stop.addEventListener('click', () => running?.abort());
  view.replaceChildren(el('h2', {}, 'Ask'),
    el('form', { onsubmit: (event) => { event.preventDefault(); run(); } },
      el('label', { for: 'question' }, 'Question'), text,
      el('label', { for: 'spend' }, 'Cost versus accuracy: ', goal), slider, el('div', { class: 'ends', 'aria-hidden': 'true' }, el('span', {}, 'cheap'), el('span', {}, 'right')),
      el('label', { for: 'model' }, 'Model'), model,
      el('label', { for: 'reference' }, 'Right answer, if you know it (never shown to a model)'), reference,
      el('div', { class: 'row' }, button, stop, status), ahead.place),
    answers);
  return () => { running?.abort(); events?.close(); ahead.end(); };
}

// The slider goes through the paper's four modes: the cost weighs 0.8 at its left end and 0 at its right.
function weights(value) {
  const cost = 0.8 * (1 - value / 100), half = (1 - cost) / 2;
  return { correct: half, score: half, cost };
}

// Without a value of the slider, and for `auto:OBJECTIVE`, the objective is that of the deployment or of the name.
function request(question, value, model, reference) {
  const uniscale = value === null || model.startsWith('auto:') ? {} : { weights: weights(value) };
  // Without a reference the reward waits for the thumb.
  if (reference.trim()) uniscale.reference = reference.trim();
  else uniscale.feedback_wait_s = 600;
  return { model, messages: [{ role: 'user', content: question }], uniscale };
}

function watch(id, place) {
  const events = new EventSource(`/v1/queries/${encodeURIComponent(id)}/events`);
  events.addEventListener('step', (event) => place.replaceChildren(legend(), drawTree(JSON.parse(event.data).search)));
  events.addEventListener('answer', () => events.close());
  events.addEventListener('error', () => events.close());
  return events;
}
