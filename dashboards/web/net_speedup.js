// Was it worth it? The run's account in a sentence and a table, and the net speed-up along the run.
'use strict';
(() => {
  const {count, dropChart, duration, element, percent, stepChart, tipTable} = gnomon;

  const kSources = {
    steps: 'measured on its own steps', inline_replays: "measured on replays beside the run's steps",
    spare_replays: 'measured on replays', prior: 'assumed: the policy’s word, nothing measured yet',
  };
  // What rests on the policy's word is no measurement.
  const isMeasured = (economics) => Boolean(economics) && economics.net_speedup !== null && economics.speedup_source !== 'prior';

  const times = (value) => (typeof value === 'number' ? value.toFixed(3) : '–');
  const share = (value) => `${(100 * value).toFixed(1)}%`;

  // "1/20k": a rate as the economics write it.
  function oneIn(rate) {
    if (!(rate > 0)) return '0';
    const steps = 1 / rate;
    const [unit, letter] = steps >= 1e6 ? [1e6, 'M'] : steps >= 1e3 ? [1e3, 'k'] : [1, ''];
    return `1/${Number((steps / unit).toPrecision(2))}${letter}`;
  }

  function itemsTable(economics) {
    const rows = economics.items.filter((item, i) => i === 0 || Math.abs(item.share) >= 5e-5);
    const row = (cells, strong) => element('tr', strong ? {class: 'total'} : {},
      ...cells.map((cell, i) => element('td', {class: i === 0 ? '' : 'number'}, cell)));
    return element('table', {class: 'net-speedup'},
      element('thead', {}, element('tr', {}, element('th', {}, 'what was paid for'), element('th', {class: 'number'}, 'time'), element('th', {class: 'number'}, 'share'))),
      element('tbody', {}, ...rows.map((item) => row([item.words, signed(item.seconds), share(item.share)])),
        row(['everything paid', duration(economics.paid_seconds), share(1)], true),
        row([`the same steps in BF16, unverified${isMeasured(economics) ? '' : ' (assumed)'}`, duration(economics.bf16_seconds), share(economics.bf16_seconds / economics.paid_seconds)], true)));
  }

  const signed = (seconds) => (seconds < 0 ? `−${duration(-seconds)}` : duration(seconds));

  function lossGap({loss_gap: gap, loss_gap_percent: paid}) {
    if (!gap) return 'not known: too few windows under this plan';
    const of = gap.source === 'long_forks' ? 'long forks, which see what stays in the weights' : 'windows';
    return `${percent(gap.percent)} ± ${percent(gap.error_percent)} in the newest ${of}${paid > 0 ? '' : gap.percent > 0 ? '; within the noise, not paid for' : '; no cost'}`;
  }

  function facts(economics) {
    const {steps, hazard, cadence} = economics;
    const kinds = [['FP8', steps.fp8], ['FP8 with sites in BF16', steps.pinned], ['BF16', steps.bf16]].filter(([, kind]) => kind.run > 0);
    const list = [
      ['FP8’s steps alone', `${times(economics.speedup)} times BF16’s speed, ${kSources[economics.speedup_source] || economics.speedup_source}`],
      ['steps kept', kinds.map(([name, kind]) => `${count(kind.kept)} in ${name}`).join(', ') || 'none yet'],
      ['rolled back', economics.rollbacks ? `${count(economics.steps_lost)} steps in ${count(economics.rollbacks)} rollback${economics.rollbacks === 1 ? '' : 's'}` : 'nothing'],
      ['replays', `${count(economics.replays)}, ${duration(economics.verification_seconds + economics.spare_verification_seconds)}`],
      ['loss gap', lossGap(economics)],
      ['faults of FP8', `${count(hazard.faults)} in ${count(hazard.fp8_steps)} FP8 steps; with what is expected of a new run, ${oneIn(hazard.per_step)} a step (90%: ${oneIn(hazard.per_step_low)} to ${oneIn(hazard.per_step_high)})`],
      ['cadence', `a window every ${count(cadence.every)} steps, ${cadence.kind}`
        + (cadence.best_every === null ? '' : `; the best would be every ${count(cadence.best_every)}`
          + (cadence.net_speedup_expected === null ? '' : `, expected net speed-up ${times(cadence.best_net_speedup_expected)} instead of ${times(cadence.net_speedup_expected)}`)
          + (isMeasured(economics) ? '' : ', if FP8 is as fast as is assumed'))],
    ];
    const {promise} = economics;
    list.push(['promise', `${promise.words} A rollback then mostly goes to at most ${count(promise.rollback_steps)} steps before it.`]);
    return element('dl', {class: 'facts'}, ...list.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
  }

  function chart(host, points, data) {
    if (points.length < 2) {
      dropChart(host);
      host.replaceChildren();
      return;
    }
    const ends = [Math.min(0, points[0].step), points[points.length - 1].step];
    const columns = [
      {label: 'BF16 without verification', legend: 'BF16 without verification', color: '--bf16', width: 1.5, dash: [6, 4], points: ends.map((step) => [step, 1])},
      {label: 'FP8’s steps alone', legend: 'FP8’s steps alone', color: '--offset', width: 1.5, dash: [2, 2], points: points.map((p) => [p.step, p.speedup])},
      {label: 'net speed-up', legend: 'net speed-up, everything paid', color: '--fp8', width: 2, pointSize: 2, points: points.map((p) => [p.step, p.net_speedup])},
    ];
    const high = Math.max(1, ...points.flatMap((p) => [p.speedup, p.net_speedup]));
    stepChart(host, {
      columns, faults: data.faults, attempts: data.attempts, range: [0, 1.08 * high], low: true,
      yLabel: 'times BF16’s speed', yFormat: (y) => y.toFixed(2),
      tooltip: (step) => {
        const here = points.find((p) => p.step === step);
        return here ? tipTable(`up to step ${count(step)}`, [['--fp8', 'net speed-up', times(here.net_speedup)],
          ['--offset', 'FP8’s steps alone', times(here.speedup)]]) : null;
      },
    });
  }

  // `economics` as the API's route of that name answers it, or null; `data` has the faults and attempts of the charts.
  function netSpeedup(host, economics, data) {
    if (!economics || economics.net_speedup === null) {
      dropNetSpeedup(host);
      host.replaceChildren(element('p', {class: 'empty'}, economics ? economics.sentence : 'This ledger has no account that can be read.'));
      return;
    }
    if (!host.gnomonWorth) {
      host.gnomonWorth = {words: element('div'), chart: element('div')};
      host.replaceChildren(host.gnomonWorth.words, host.gnomonWorth.chart);
    }
    host.gnomonWorth.words.replaceChildren(element('p', {class: 'sentence'}, economics.sentence),
      element('div', {class: 'pair'}, itemsTable(economics), facts(economics)));
    chart(host.gnomonWorth.chart, economics.points.filter((point) => point.measured), data);
  }

  // Before another run is shown there.
  function dropNetSpeedup(host) {
    if (host.gnomonWorth) dropChart(host.gnomonWorth.chart);
    host.gnomonWorth = null;
  }


  // A tile of the net speed-up for tiles(), with `more` said beside it; in colour only when the run is `well`.
  function netSpeedupTile(economics, more, well = true) {
    if (economics && economics.net_speedup !== null && !isMeasured(economics)) {
      return ['Net speed-up', 'not measured', [`assumed: FP8 steps ${economics.speedup.toFixed(2)} times as fast`, more].filter(Boolean).join('; '), ''];
    }
    const known = isMeasured(economics);
    return ['Net speed-up', known ? times(economics.net_speedup) : '–', ['over BF16, everything paid', more].filter(Boolean).join('; '),
      known && well ? (economics.net_speedup >= 1 ? 'good' : 'bad') : ''];
  }

  Object.assign(gnomon, {dropNetSpeedup, netSpeedup, netSpeedupTile});
})();
