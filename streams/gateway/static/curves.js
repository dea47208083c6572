// Accuracy and cost over time, the policy's beside its control's, with changes of catalogue and objectives marked.

import uPlot from '/static/vendor/uPlot.esm.js';
import { clock, cost, el } from '/static/dom.js';

const KINDS = [
  { title: 'Accuracy, %', of: (point) => (point.accuracy === null ? null : 100 * point.accuracy), ticks: (u, values) => values.map((v) => v.toFixed(0)) },
  { title: 'Mean cost', of: (point) => point.cost, ticks: (u, values) => values.map(cost) },
];

export function curves() {
  const place = el('div', { class: 'charts' });
  let plots = null, marks = [];
  const show = (series, found) => {
    marks = found;
    if (series.policy.length + series.control.length < 2) {
      if (!plots) place.replaceChildren(el('p', { class: 'quiet' }, 'Accuracy and cost over time appear after a few queries.'));
      return;
    }
    if (!plots) {
      place.replaceChildren();
      plots = KINDS.map((kind) => draw(place, kind, () => marks));
      new ResizeObserver(() => plots.forEach(fit)).observe(place);
    }
    plots.forEach((plot, at) => plot.setData(joined(series, KINDS[at].of)));
  };
  return { place, show };
}

// Both series on one axis of time, with null where only the other has a point.
function joined(series, of) {
  const times = [...new Set([...series.policy, ...series.control].map((point) => point.at))].sort((a, b) => a - b);
  const along = (points) => { const by = new Map(points.map((point) => [point.at, of(point)])); return times.map((at) => by.get(at) ?? null); };
  return [times, along(series.policy), along(series.control)];
}

function draw(place, kind, marks) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour('--text'), grid: { stroke: colour('--line') }, ticks: { stroke: colour('--line') } };
  const box = el('div', { class: 'chart' }, el('h3', {}, kind.title));
  place.append(box);
  return new uPlot({
    width: wide(box), height: 200,
    hooks: { draw: [(u) => lines(u, marks(), colour('--warn'))] },
    axes: [{ ...axis, space: 70 }, { ...axis, values: kind.ticks, size: 60 }],
    series: [
      { label: 'at', value: (u, at) => (at === null ? '–' : clock(at)) },
      { label: 'policy', stroke: colour('--accent'), width: 2, spanGaps: true, value: (u, v) => (v === null ? '–' : kind.ticks(u, [v])[0]) },
      { label: 'control', stroke: colour('--quiet'), width: 2, dash: [6, 4], spanGaps: true, value: (u, v) => (v === null ? '–' : kind.ticks(u, [v])[0]) },
    ],
  }, [[], [], []], box);
}

const wide = (box) => Math.max(240, box.clientWidth - 16);
function fit(plot) { plot.setSize({ width: wide(plot.root.parentNode), height: 200 }); }

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
