// Fills the report's page from the data inside it. Charts and tables are those of dashboards/web.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const place = (id) => document.getElementById(id);

  place('title').textContent = `${data.run.name}/${data.run.job_id}`;
  place('words').textContent = data.words;
  place('facts').textContent = [
    `${gnomon.count(data.run.parameters)} parameters in ${data.run.layers} layers`,
    `${gnomon.count(data.run.tokens_per_step)} tokens per step`,
    data.run.device,
    data.run.libraries,
    `started ${new Date(data.run.registered_at * 1000).toLocaleString()}`,
  ].filter(Boolean).join(' · ');

  const s = data.summary;
  gnomon.verdictBanner(place('verdict'), s.run_verdict, s.run_verdict_sentence, s.run_verdict_since, Date.now() / 1000);
  const caught = s.fault
    ? (s.detected ? [`window ${s.windows_to_detect}`, 'of those with the fault in', 'good'] : ['no', 'not detected', 'bad'])
    : null;
  gnomon.tiles(place('tiles'), [
    caught ? ['Caught in', ...caught] : ['Alarms', String(s.alarms), `in ${s.windows} measured windows`],
    ['Verdict', s.verdict.replace(/_/g, ' '), gnomon.sitesInWords(s.blamed_sites)],
    ['Action', s.action, s.plan_changed ? (s.returned_to_fp8 ? 'and back in FP8 later' : 'still out of FP8') : 'plan unchanged',
      s.plan_changed ? (s.returned_to_fp8 ? 'good' : 'bad') : ''],
    ['Steps rolled back', gnomon.count(s.steps_lost), `of ${gnomon.count(s.steps)}, in ${s.attempts} attempt${s.attempts === 1 ? '' : 's'}`],
    ...(caught ? [['False alarms', String(s.false_alarms), `in ${s.windows} measured windows`, s.false_alarms ? 'bad' : 'good']] : []),
    ['Final loss', typeof s.final_loss === 'number' ? s.final_loss.toFixed(4) : '–', 'held-out, BF16, nats per token'],
    gnomon.netSpeedupTile(s.economics, `verification ${(100 * (s.economics ? s.economics.verification_share : s.verification_share)).toFixed(1)}% of everything paid`),
    ['Wall time', gnomon.duration(s.wall_seconds), `${gnomon.duration(s.train_seconds)} in steps`],
  ]);
  gnomon.lossChart(place('loss'), data);
  gnomon.gapChart(place('gap'), data);
  gnomon.netSpeedup(place('net-speedup'), s.economics, data);
  gnomon.precisionTimeline(place('precision'), data);
  gnomon.decisionsTable(place('decisions'), data.decisions, data.run.registered_at);
})();
