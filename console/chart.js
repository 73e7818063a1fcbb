// A small chart of the last minutes.

import { html, useEffect, useRef } from './vendor/preact-htm.js';
import uPlot from './vendor/uplot.js';

const COLOURS = ['--c1', '--c2', '--c3', '--c4', '--c5', '--c6'];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const figure = (v) => (v >= 100 ? v.toFixed(0) : v >= 1 ? v.toFixed(1) : v.toFixed(2));

/** `times` in seconds, one column of `columns` for each of `names`; the latest values stand beside the names. */
export function Chart({ title, unit, times, names, columns, tick }) {
  const box = useRef();
  const plot = useRef();
  useEffect(() => {
    const axis = { stroke: colour('--quiet'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false } };
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(
        {
          width: Math.max(200, box.current.clientWidth),
          height: 130,
          legend: { show: false },
          cursor: { show: false },
          scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 0.1) * 1.1] } },
          axes: [
            { ...axis, size: 24, space: 90, values: (_, at) => at.map((s) => (times.length > 1 ? new Date(s * 1000).toLocaleTimeString('en-GB') : '')) },
            { ...axis, size: 44, space: 30 },
          ],
          series: [
            {},
            ...names.map((name, i) => ({ label: name, stroke: colour(COLOURS[i % 6]), width: 1.5, points: { show: false } })),
          ],
        },
        [times, ...columns],
        box.current,
      );
    };
    make();
    const resized = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height: 130 }));
    resized.observe(box.current);
    const theme = matchMedia('(prefers-color-scheme: dark)');
    theme.addEventListener('change', make);
    return () => {
      resized.disconnect();
      theme.removeEventListener('change', make);
      plot.current.destroy();
    };
  }, [names.join()]);
  useEffect(() => plot.current?.setData([times, ...columns]), [tick]);
  return html`<figure>
    <figcaption>${title} <span class="quiet">${unit}</span></figcaption>
    <div class="plot" aria-hidden="true" ref=${box}></div>
    <ul class="legend">
      ${names.map((name, i) => {
        const latest = columns[i].at(-1);
        return html`<li><i class=${`line${(i % 6) + 1}`}></i>${name}
          <b>${latest === null || latest === undefined ? '–' : figure(latest)}</b></li>`;
      })}
    </ul>
  </figure>`;
}
