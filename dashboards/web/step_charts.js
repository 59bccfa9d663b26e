// Charts over steps, drawn by Dygraph: the loss with its shadow, and the gap of each window.
'use strict';
(() => {
  const {color, count, element, greatest, hideTip, percent, showTip, svg, tipTable} = gnomon;
  const repaint = new Set();  // one function for each chart, called when the reader's choice of colours changes

  // Rows for Dygraph from columns of {points: [[x, y], ...]}: null is "no point here", NaN breaks the line.
  function mergeColumns(columns) {
    const byX = new Map();
    columns.forEach((column, index) => {
      for (const [x, y] of column.points) {
        if (!byX.has(x)) byX.set(x, []);
        const rows = byX.get(x);
        let row = rows.find((candidate) => candidate[index + 1] === null);
        if (!row) rows.push(row = [x, ...columns.map(() => null)]);
        row[index + 1] = y;
      }
    });
    return [...byX.keys()].sort((a, b) => a - b).flatMap((x) => byX.get(x));
  }

  function legendOf(columns, faults, attempts) {
    const list = element('ul', {class: 'legend'});
    const add = (name, draw) => {
      const picture = svg('svg', {viewBox: '0 0 26 12', 'aria-hidden': 'true'});
      picture.append(draw);
      const item = element('li', {}, name);
      item.prepend(picture);
      list.append(item);
    };
    for (const column of columns) {
      if (!column.legend) continue;
      add(column.legend, column.draw
        ? svg('path', {d: 'M13 1 L18.5 11 L7.5 11 Z', fill: `var(${column.color})`}) : column.width === 0
        ? svg('circle', {cx: 13, cy: 6, r: 4, fill: `var(${column.color})`})
        : svg('line', {x1: 0, x2: 26, y1: 6, y2: 6, stroke: `var(${column.color})`,
          'stroke-width': Math.max(column.width, 2), 'stroke-dasharray': (column.dash || []).join(' ')}));
    }
    if (faults.length) add('injected fault', svg('rect', {width: 26, height: 12, fill: 'var(--fault-fill)', stroke: 'var(--fault-line)'}));
    if (attempts.length > 1) {
      add('rollback or restart', svg('line', {x1: 13, x2: 13, y1: 0, y2: 12, stroke: 'var(--mark)', 'stroke-width': 1.5, 'stroke-dasharray': '3 2'}));
    }
    return list;
  }

  function drawUnderlay(context, area, graph, faults, attempts) {
    const [, xMax] = graph.xAxisRange();
    context.save();
    for (const fault of faults) {
      const left = Math.max(area.x, graph.toDomXCoord(fault.start_step - 0.5));
      const end = fault.end_step > 0 ? fault.end_step - 0.5 : xMax;
      const right = Math.min(area.x + area.w, Math.max(left + 2, graph.toDomXCoord(end)));
      if (right <= area.x || left >= area.x + area.w) continue;
      context.fillStyle = color('--fault-fill');
      context.fillRect(left, area.y, right - left, area.h);
      context.fillStyle = color('--fault-line');
      context.fillRect(left, area.y, 1.5, area.h);
    }
    context.strokeStyle = color('--mark');
    context.setLineDash([4, 3]);
    for (const attempt of attempts.slice(1)) {
      const x = Math.round(graph.toDomXCoord(attempt.base_step)) + 0.5;
      if (x < area.x || x > area.x + area.w) continue;
      context.beginPath();
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
    }
    context.restore();
  }

  // Takes the chart out of `host`, with the reader's zoom: before another run is shown there.
  function dropChart(host) {
    if (!host.gnomonChart) return;
    repaint.delete(host.gnomonChart.repaint);
    host.gnomonChart.graph.destroy();
    host.gnomonChart = null;
    host.replaceChildren();
  }

  // One Dygraph in `host`. `columns`: {label, legend?, color, width, dash?, points, pointSize?, draw?}. `tooltip` gets a
  // step and returns an element, or null. Called again with new data it keeps the reader's zoom.
  function stepChart(host, options) {
    const {columns, faults, attempts, range, yLabel, low, tooltip, yFormat} = options;
    const layout = columns.map((column) => column.label).join('|');
    if (host.gnomonChart && host.gnomonChart.layout === layout) {
      host.gnomonChart.options = options;
      host.gnomonChart.graph.updateOptions({file: mergeColumns(columns), valueRange: range});
      return;
    }
    dropChart(host);
    const place = element('div', {class: low ? 'chart low' : 'chart'});
    host.replaceChildren(legendOf(columns, faults, attempts), place);
    const state = {layout, options};
    const series = {};
    const paint = () => {
      for (const column of columns) {
        series[column.label] = {
          color: color(column.color), strokeWidth: column.width, strokePattern: column.dash || null,
          drawPoints: Boolean(column.pointSize), pointSize: column.pointSize || 0,
          highlightCircleSize: Math.max(3, (column.pointSize || 0) + 1),
          ...(column.draw ? {drawPointCallback: column.draw} : {}),
        };
      }
      return {series, gridLineColor: color('--grid'), axisLineColor: color('--line')};
    };
    state.graph = new Dygraph(place, mergeColumns(columns), {
      labels: ['step', ...columns.map((column) => column.label)],
      connectSeparatedPoints: true, legend: 'never', valueRange: range, xlabel: 'step', ylabel: yLabel,
      xRangePad: 8, rightGap: 8, gridLineWidth: 1, highlightCircleSize: 3,
      axes: {y: {axisLabelWidth: 62, axisLabelFormatter: yFormat}, x: {axisLabelFormatter: (x) => count(x)}},
      underlayCallback: (context, area, graph) =>
        drawUnderlay(context, area, graph, state.options.faults, state.options.attempts),
      highlightCallback: (event, x) => {
        const content = state.options.tooltip(x);
        if (content) showTip(event, content); else hideTip();
      },
      unhighlightCallback: hideTip,
      ...paint(),
    });
    host.gnomonChart = state;
    state.repaint = () => state.graph.updateOptions(paint());
    repaint.add(state.repaint);
  }

  const inWords = (faults, step) => faults
    .filter((f) => step >= f.start_step && (f.end_step === 0 || step < f.end_step))
    .map((f) => ['--fault-line', 'fault', f.kind.replace(/_/g, ' ')]);

  const number = (value) => (typeof value === 'number' ? value : NaN);

  function zip(steps, values) { return steps.map((step, i) => [step, number(values[i])]); }

  // Lines of several windows as one column: broken where a window does not follow directly on another.
  function windowPoints(windows) {
    const points = windows.flatMap((window) => zip(window.steps, window.loss));
    const known = new Set(points.map(([step]) => step));
    for (const window of windows) {
      const last = window.steps[window.steps.length - 1];
      if (last !== undefined && !known.has(last + 1)) points.push([last + 1, NaN]);
    }
    return points;
  }

  // The run's loss, attempt by attempt, and the shadow over it.
  function lossChart(host, data) {
    const kept = [];
    const columns = [];
    for (const attempt of data.attempts) {
      const until = attempt.kept_until ?? Infinity;
      const points = zip(attempt.steps, attempt.loss);
      kept.push(...points.filter(([step]) => step <= until));
      const lost = points.filter(([step]) => step >= until);
      if (lost.length > 1) {
        columns.push({label: `attempt ${attempt.attempt}, thrown away`, color: '--abandoned', width: 1.5, points: lost});
      }
    }
    if (columns.length) columns[0].legend = 'thrown away by a rollback';
    if (kept.length === 0 && columns.length === 0) {
      dropChart(host);
      host.replaceChildren(element('p', {class: 'empty'}, 'No step has been reported yet.'));
      return;
    }
    columns.push({label: 'run', legend: 'the run', color: '--fp8', width: 1.5, points: kept});
    const until = new Map(data.attempts.map((a) => [a.attempt, a.kept_until ?? Infinity]));
    const isKept = (window) => window.steps.length > 0 && window.steps[0] <= until.get(window.attempt);
    columns.push({label: 'shadow', legend: 'BF16 shadow', color: '--bf16', width: 1.5, dash: [4, 2],
      points: windowPoints(data.shadow.filter(isKept))});
    const lostShadow = windowPoints(data.shadow.filter((window) => !isKept(window)));
    if (lostShadow.length) {
      columns.push({label: 'shadow of what was thrown away', color: '--bf16', width: 1, dash: [1, 2], points: lostShadow});
    }

    // The first steep tenth and what was thrown away may leave the picture: the rest is what one looks for.
    const everything = columns.flatMap((column) => column.points).filter(([, y]) => Number.isFinite(y));
    const lastStep = greatest(everything.map(([x]) => x));
    const settled = kept.filter(([x, y]) => Number.isFinite(y) && (x > 0.1 * lastStep || lastStep < 20));
    const top = (points) => greatest(points.map(([, y]) => y));
    const low = -greatest(everything.map(([, y]) => -y));
    const high = Math.min(top(everything), 1.4 * top(settled.length ? settled : everything));
    const pad = 0.04 * (high - low) || 0.1;
    const at = columns.map((column) => new Map(column.points));
    stepChart(host, {
      columns, faults: data.faults, attempts: data.attempts, range: [low - pad, high + pad],
      yLabel: 'training loss (nats per token)', yFormat: (y) => y.toFixed(2),
      tooltip: (step) => tipTable(`step ${count(step)}`, [
        ...columns.map((column, i) => [column, at[i].get(step)]).filter(([, y]) => Number.isFinite(y))
          .map(([column, y]) => [column.color, column.label, y.toFixed(4)]),
        ...inWords(data.faults, step)]),
    });
  }

  function triangleUp(graph, name, context, x, y, fill, size) {
    context.fillStyle = fill;
    context.beginPath();
    context.moveTo(x, y - size - 1);
    context.lineTo(x - size - 1, y + size);
    context.lineTo(x + size + 1, y + size);
    context.fill();
  }

  function offsetPercent(window) {
    if (typeof window.offset_loss !== 'number' || typeof window.gap !== 'number') return NaN;
    if (typeof window.d_percent !== 'number' || window.d_percent === 0) return NaN;
    return window.offset_loss / (window.gap / window.d_percent);  // gap / D is the loss over 100
  }

  // The gap of each window at its end, with the tolerance and the offset.
  function gapChart(host, data) {
    const measured = data.windows.filter((w) => typeof w.d_percent === 'number');
    if (measured.length === 0) {
      dropChart(host);
      host.replaceChildren(element('p', {class: 'empty'}, 'No window has been measured yet.'));
      return;
    }
    const end = (w) => w.start_step + w.steps;
    const tolerance = greatest(measured.map((w) => w.tolerance_percent || 0));
    const cap = Math.max(4 * tolerance, 0.05);
    const clamp = (value) => Math.max(-cap, Math.min(cap, value));
    const until = new Map(data.attempts.map((a) => [a.attempt, a.kept_until ?? Infinity]));
    const isKept = (w) => w.start_step < (until.get(w.attempt) ?? Infinity);
    const points = (list, value) => list.map((w) => [end(w), clamp(value(w))]).sort((a, b) => a[0] - b[0]);
    const gap = (w) => w.d_percent;
    // An open window has a rule only when it is an alarm whose case goes on.
    const isAlarm = (w) => w.state === 'alarm' || (w.state === 'open' && Boolean(w.rule));
    const plain = measured.filter((w) => w.kind !== 'probe' && w.kind !== 'long');
    const forks = measured.filter((w) => w.kind === 'long' && !isAlarm(w) && isKept(w));
    const regular = plain.filter((w) => !isAlarm(w) && isKept(w));
    // What FP8 costs weights that are damaged already says nothing of FP8.
    const offsets = measured.filter((w) => w.kind === 'shadow' && !isAlarm(w) && Number.isFinite(offsetPercent(w)));
    const limits = measured.map((w) => [end(w), w.tolerance_percent]);
    limits.push([0, tolerance]);
    // As far as the loss above it goes: what is not verified yet is seen to be so.
    const newest = greatest(data.attempts.map((attempt) => attempt.steps[attempt.steps.length - 1] || 0));
    if (newest > greatest(limits.map(([x]) => x))) limits.push([newest, tolerance]);
    const alarms = measured.filter(isAlarm);
    const columns = [
      {label: 'tolerance', legend: 'tolerance', color: '--tolerance', width: 1.5, dash: [6, 4], points: limits},
      {label: 'offset', legend: 'offset', color: '--offset', width: 1, pointSize: 2.5, points: points(offsets, offsetPercent)},
      {label: 'gap', legend: 'gap', color: '--fp8', width: 1.5, pointSize: 3.5, points: points(regular, gap)},
      {label: 'gap, thrown away', legend: 'gap, thrown away', color: '--abandoned', width: 0, pointSize: 3.5,
        points: points(plain.filter((w) => !isAlarm(w) && !isKept(w)), gap)},
      {label: 'gap of a long fork', legend: 'gap of a long fork', color: '--good', width: 1, dash: [2, 3], pointSize: 4.5, points: points(forks, gap)},
      {label: 'probe of FP8', legend: measured.some((w) => w.kind === 'probe') ? 'FP8 probe while in BF16' : '',
        color: '--probe', width: 0, pointSize: 4, points: points(measured.filter((w) => w.kind === 'probe' && !isAlarm(w)), gap)},
      {label: 'alarm', legend: alarms.some((w) => Math.abs(gap(w)) > cap) ? 'alarm (at the edge: beyond the scale)' : 'alarm', color: '--bad', width: 0, pointSize: 5,
        points: points(alarms, gap), draw: triangleUp},
    ].filter((column) => column.points.length > 0);
    const values = columns.flatMap((column) => column.points.map(([, y]) => y));
    const low = Math.min(0, -greatest(values.map((y) => -y)));
    const high = Math.max(0, greatest(values));
    const pad = 0.08 * (high - low) || 0.1;
    stepChart(host, {
      columns, faults: data.faults, attempts: data.attempts, range: [low - pad, high + pad], low: true,
      yLabel: 'share of the loss (%)', yFormat: (y) => y.toFixed(2),
      tooltip: (step) => {
        const here = measured.filter((w) => end(w) === step);
        if (here.length === 0) return null;
        return element('div', {}, ...here.map((w) => tipTable(
          `window ${w.window}: ${w.kind}, ${w.state}, steps ${w.start_step + 1}–${end(w)}`, [
            [isAlarm(w) ? '--bad' : '--fp8', 'gap', percent(w.d_percent)],
            ['--tolerance', 'tolerance', percent(w.tolerance_percent)],
            ...(w.rule ? [['--bad', 'rule', w.rule]] : []),
            ...(w.why ? [['', 'not counted', w.why]] : []),
            ...(typeof w.statistic === 'number' && typeof w.threshold === 'number'
              ? [['', w.rule === 'ceiling' || w.rule === 'jump' ? 'D against the limit of one window' : w.rule === 'recovery' ? 'mean D since the action against what is tolerated' : 'evidence', `${w.statistic.toPrecision(3)} of ${w.threshold.toPrecision(3)}`]] : []),
            ...(typeof w.scale_percent === 'number' ? [['', 'deviation taken', percent(w.scale_percent).replace('+', '')]] : []),
            ...(Number.isFinite(offsetPercent(w)) ? [['--offset', 'offset', percent(offsetPercent(w))]] : []),
            ...inWords(data.faults, step)])));
      },
    });
  }

  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => repaint.forEach((paint) => paint()));

  Object.assign(gnomon, {dropChart, gapChart, lossChart, stepChart});
})();
