// Now: what goes on, and whether choosing pays.

import uPlot from '/static/vendor/uPlot.esm.js';
import { get } from '/static/api.js';
import { clock, eflops, el, percent, table, tile } from '/static/dom.js';

export async function now(view) {
  const parts = { top: el('div'), chart: el('div', { class: 'chart' }), marks: el('div'), rest: el('div') };
  view.replaceChildren(el('h2', {}, 'Now'), parts.top, parts.chart, parts.marks, parts.rest);
  let plot = null;
  const marks = { shown: [] };
  const refresh = async () => {
    const [found, latest] = await Promise.all([get('/v1/now?limit=1000'), get('/v1/queries?limit=20')]);
    parts.top.replaceChildren(...header(found));
    parts.rest.replaceChildren(...tables(found, latest.data));
    marks.shown = found.marks;
    plot = draw(plot, parts.chart, found.series, marks);
    parts.marks.replaceChildren(...changes(found.marks));
  };
  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 3000);
  return () => clearInterval(timer);
}

function header(found) {
  const { policy, control } = found.cohorts;
  return [
    el('p', { class: 'sentence', 'aria-live': 'polite' }, sentence(policy, control, found.uplift)),
    el('div', { class: 'tiles' },
      tile(found.per_second.toFixed(2), 'queries per second, last minute'),
      tile(String(found.in_flight), 'in flight'),
      tile(percent(policy.accuracy?.mean), `accuracy of the policy${spread(policy.accuracy, percent)}`),
      tile(eflops(policy.eflops?.mean), `mean eFLOPs of the policy${spread(policy.eflops, eflops)}`),
      tile(percent(control.accuracy?.mean), `accuracy of the control group${spread(control.accuracy, percent)}`),
      tile(eflops(control.eflops?.mean), `mean eFLOPs of the control group${spread(control.eflops, eflops)}`)),
  ];
}

function sentence(policy, control, uplift) {
  if (!policy.accuracy) return 'No graded answers yet: send a reference with a question, or give feedback.';
  if (!control.accuracy || !control.eflops) return `The policy answers ${percent(policy.accuracy.mean)} of ${policy.accuracy.n} graded questions correctly. There is no control group to compare with.`;
  return uplift.sentence;
}

const spread = (found, shown) => (found ? ` (${shown(found.low)} to ${shown(found.high)}, n = ${found.n})` : '');

function draw(plot, place, series, marks) {
  const data = [series.map((s) => s.at), series.map((s) => (s.accuracy === null ? null : 100 * s.accuracy)), series.map((s) => s.eflops)];
  if (series.length < 2) {
    if (!plot) place.replaceChildren(el('p', { class: 'quiet' }, 'Accuracy and cost over time appear after a few queries.'));
    return plot;
  }
  if (plot) { plot.setData(data); return plot; }
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour('--text'), grid: { stroke: colour('--line') } };
  place.replaceChildren();
  return new uPlot({
    width: Math.max(280, place.clientWidth - 16), height: 220,
    scales: { cost: {} },
    hooks: { draw: [(u) => lines(u, marks.shown, colour('--warn'))] },
    axes: [axis, { ...axis, label: 'accuracy, %' }, { ...axis, scale: 'cost', side: 1, grid: { show: false }, label: 'mean eFLOPs', values: (u, ticks) => ticks.map(eflops), size: 70 }],
    series: [{}, { label: 'accuracy, %', stroke: colour('--good'), width: 2, spanGaps: true }, { label: 'mean eFLOPs', scale: 'cost', stroke: colour('--accent'), width: 2, spanGaps: true }],
  }, data, place);
}

// Each change as a dashed line with its number in the list below.
function lines(u, marks, colour) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([4, 4]);
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  marks.forEach((mark, at) => {
    if (mark.at < u.scales.x.min || mark.at > u.scales.x.max) return;
    const x = u.valToPos(mark.at, 'x', true);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(String(at + 1), x + 3, bbox.top + 11 * devicePixelRatio);
  });
  ctx.restore();
}

function changes(marks) {
  if (!marks.length) return [];
  const last = marks.map((mark, at) => el('li', { value: at + 1 }, `${clock(mark.at)} ${mark.what}`)).slice(-8);
  return [el('h2', {}, 'Changes'), el('ol', { class: 'marks' }, last)];
}

function chosenFor(found, kind) {
  if (!found.length) return null;
  const name = (of) => of ?? `no ${kind} given`;
  const often = (group) => group.choices.map((c) => `${c.action} (${percent(c.queries / group.queries)})`).join(', ');
  return [el('h2', {}, `Chosen by ${kind}`),
    table(`Chosen by ${kind}`, [kind[0].toUpperCase() + kind.slice(1), 'Queries', 'Most often', 'Accuracy', 'Mean eFLOPs'],
      found.map((g) => [name(g.of), String(g.queries), el('td', { class: 'text' }, often(g)), percent(g.accuracy?.mean), eflops(g.eflops?.mean)]))];
}

function tables(found, latest) {
  return [
    el('h2', {}, 'What is chosen'),
    found.choices.length
      ? table('What is chosen', ['Configuration', 'Queries', 'Accuracy', 'Mean eFLOPs'],
        found.choices.map((c) => [c.action, String(c.queries), percent(c.accuracy?.mean), eflops(c.eflops?.mean)]))
      : el('p', { class: 'quiet' }, 'Nothing yet.'),
    ...['family', 'level', 'objective'].flatMap((kind) => chosenFor(found.by[kind], kind) ?? []),
    el('h2', {}, 'Models'),
    table('Models', ['Model', 'Group', 'State'], found.models.map((m) => [m.name, m.group, state(m.serving)])),
    el('h2', {}, 'Latest queries'),
    latest.length ? list(latest) : el('p', { class: 'quiet' }, 'Nothing yet: ask something.'),
  ];
}

const state = (serving) => el('span', { class: serving ? 'good' : 'bad' }, serving ? 'serving' : 'no executor');

export function list(queries) {
  return table('Queries', ['Time', 'Question', 'Configuration', 'Status', 'Right', 'eFLOPs'], queries.map((q) => [
    clock(q.created),
    el('td', { class: 'text' }, el('a', { href: `#query/${encodeURIComponent(q.id)}` }, q.question || q.id)),
    q.action, q.status, right(q.correct), eflops(q.eflops),
  ]));
}

export const right = (correct) => (correct === null ? '–' : el('span', { class: correct >= 0.5 ? 'good' : 'bad' }, correct === 1 ? 'yes' : correct === 0 ? 'no' : percent(correct)));
