-- Rows that the first version of gnomond wrote: a live run of 15 steps, a quiet window, one in triage, replays waiting.
-- To be put into a file with the schema of that version (tests/storage/ledger_schema_v1.sql).
INSERT INTO "attempts" VALUES(1,1,0,'start',1,1.0);
INSERT INTO "checkpoints" VALUES(1,1,0,'/checkpoints/attempt1/step0',1,1000,'00000000000000000000000000000000','0000000000000001',1.79526499998407864568e+09,1.79526499998410844806e+09,0);
INSERT INTO "checkpoints" VALUES(1,1,5,'/checkpoints/attempt1/step5',1,1000,'00000000000000000000000000000005','0000000000001389',1.79526499999605035785e+09,1.79526500008894038199e+09,1);
INSERT INTO "checkpoints" VALUES(1,1,10,'/checkpoints/attempt1/step10',1,1000,'0000000000000000000000000000000a','0000000000002711',1.79526500004013085361e+09,NULL,1);
INSERT INTO "checkpoints" VALUES(1,1,15,'/checkpoints/attempt1/step15',1,1000,'0000000000000000000000000000000f','0000000000003a99',1.79526500007995414736e+09,NULL,1);
INSERT INTO "decision_state" VALUES(1,23,'{"registered":true,"ended":false,"rounding_said":false,"run":{"name":"old","base_plan":"version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\ndgrad = \"fp8\"\nwgrad = \"fp8\"\n","sites":["model.layers.0.mlp.up_proj","model.layers.0.mlp.down_proj","lm_head"],"layers":1,"checkpoint_every":5,"total_steps":1000},"attempt":{"number":1,"base_step":0,"plan_version":1,"cause":"start"},"newest_step":15,"plan_version":1,"next_window":4,"next_replay":5,"next_directive":1,"next_decision":2,"next_plan_version":2,"plans":[{"version":1,"toml":"version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\ndgrad = \"fp8\"\nwgrad = \"fp8\"\n","bf16":false}],"plan_changes":[{"step":1,"plan_version":1}],"checkpoints":[{"attempt":1,"step":5,"uri":"/checkpoints/attempt1/step5","plan_version":1},{"attempt":1,"step":10,"uri":"/checkpoints/attempt1/step10","plan_version":1},{"attempt":1,"step":15,"uri":"/checkpoints/attempt1/step15","plan_version":1}],"next_start":15,"windows":[{"id":2,"kind":"shadow","start":{"attempt":1,"step":5,"uri":"/checkpoints/attempt1/step5","plan_version":1},"steps":5,"end_uri":"/checkpoints/attempt1/step10","attempt":1,"plan_version":1,"shadow_pending":false,"probe_pending":false,"deferred":false,"measured":{"gap":2.0000000000000018E-1,"offset":3.9999999999995595E-3,"d_percent":5.405405405405411E0,"reference":3.6999999999999997E0,"unusable":""}},{"id":3,"kind":"shadow","start":{"attempt":1,"step":10,"uri":"/checkpoints/attempt1/step10","plan_version":1},"steps":5,"end_uri":"/checkpoints/attempt1/step15","attempt":1,"plan_version":1,"shadow_pending":true,"probe_pending":false,"deferred":false,"measured":null}],"replays":[{"id":3,"window":3,"role":"shadow","prefix":0},{"id":4,"window":2,"role":"same","prefix":0}],"quiet_ends":[],"last_verified":{"attempt":1,"step":5,"uri":"/checkpoints/attempt1/step5","plan_version":1},"protected_uris":["/checkpoints/attempt1/step10","/checkpoints/attempt1/step15","/checkpoints/attempt1/step5"],"detector":{"quiet_windows":1,"mean_d":2.5647601949214924E-2,"sum_squares":0E0},"spikes":{"recent":[3.999E0,3.998E0,3.997E0,3.996E0,3.995E0,3.994E0,3.993E0,3.992E0,3.991E0,3.99E0,3.989E0,3.988E0,3.987E0,3.986E0,3.985E0],"first_count":15,"first_max":3.999E0,"silent_until":0,"non_finite_reported":false},"generic_spike_steps":[],"suspicion":null,"investigation":{"window":2,"trigger":"gap","stage":"triage","measured":{"gap":2.0000000000000018E-1,"offset":3.9999999999995595E-3,"d_percent":5.405405405405411E0,"reference":3.6999999999999997E0,"unusable":""},"finding":null,"same":null,"same_failed":false,"bf16":null,"bf16_failed":false,"search":{"candidates":[],"guilty":[],"known_bad":0,"known_good":0,"empty_unknown":false,"asked":[],"replays":0,"failures":0}},"directive":null,"recovery":null,"containment":null,"fault_reported":false,"actions":0,"rollbacks":[],"wait_windows":2,"quiet_since_return":-1}');
INSERT INTO "decisions" VALUES(1,1,1.7952650001048166752e+09,'alarm','none','none',0,1,15,2,'[]','Window 2 (steps 5–10): the FP8 run''s held-out loss is 5.41% above the BF16 replay''s; tolerance 0.50%.','{"window":2,"start_step":5,"end_step":10,"gap":2.0000000000000018E-1,"offset":3.9999999999995595E-3,"d_percent":5.405405405405411E0,"bf16_loss":3.6999999999999997E0,"tolerance_percent":5E-1,"quiet_windows":1,"quiet_mean_percent":2.5647601949214924E-2,"quiet_deviation_percent":0E0}',23);
INSERT INTO "events" VALUES(1,1,1.79526499997450637814e+09,'run_registered',NULL,NULL,'{"name":"old","base_plan":"version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\ndgrad = \"fp8\"\nwgrad = \"fp8\"\n","sites":["model.layers.0.mlp.up_proj","model.layers.0.mlp.down_proj","lm_head"],"layers":1,"checkpoint_every":5,"total_steps":1000}');
INSERT INTO "events" VALUES(1,2,1.79526499998024129871e+09,'attempt_started',NULL,NULL,'{"attempt":1,"base_step":0,"cause":"start","plan_version":1}');
INSERT INTO "events" VALUES(1,3,1.79526499998410844806e+09,'checkpoint_completed',NULL,NULL,'{"attempt":1,"step":0,"uri":"/checkpoints/attempt1/step0","plan_version":1}');
INSERT INTO "events" VALUES(1,4,1.79526499998812770842e+09,'step_reported',1,1,NULL);
INSERT INTO "events" VALUES(1,5,1.79526499999035859113e+09,'step_reported',1,2,NULL);
INSERT INTO "events" VALUES(1,6,1.7952649999912819863e+09,'step_reported',1,3,NULL);
INSERT INTO "events" VALUES(1,7,1.79526499999212622643e+09,'step_reported',1,4,NULL);
INSERT INTO "events" VALUES(1,8,1.79526499999299979206e+09,'step_reported',1,5,NULL);
INSERT INTO "events" VALUES(1,9,1795264999.99606,'checkpoint_completed',NULL,NULL,'{"attempt":1,"step":5,"uri":"/checkpoints/attempt1/step5","plan_version":1}');
INSERT INTO "events" VALUES(1,10,1.79526500000431537629e+09,'step_reported',1,6,NULL);
INSERT INTO "events" VALUES(1,11,1.79526500001233363153e+09,'step_reported',1,7,NULL);
INSERT INTO "events" VALUES(1,12,1.79526500002043771738e+09,'step_reported',1,8,NULL);
INSERT INTO "events" VALUES(1,13,1.79526500002424240116e+09,'step_reported',1,9,NULL);
INSERT INTO "events" VALUES(1,14,1.79526500003655171393e+09,'step_reported',1,10,NULL);
INSERT INTO "events" VALUES(1,15,1.79526500004014205927e+09,'checkpoint_completed',NULL,NULL,'{"attempt":1,"step":10,"uri":"/checkpoints/attempt1/step10","plan_version":1}');
INSERT INTO "events" VALUES(1,16,1.79526500004845356939e+09,'step_reported',1,11,NULL);
INSERT INTO "events" VALUES(1,17,1.7952650000567502975e+09,'step_reported',1,12,NULL);
INSERT INTO "events" VALUES(1,18,1.79526500006890153888e+09,'step_reported',1,13,NULL);
INSERT INTO "events" VALUES(1,19,1.79526500007194519045e+09,'step_reported',1,14,NULL);
INSERT INTO "events" VALUES(1,20,1.79526500007398104666e+09,'step_reported',1,15,NULL);
INSERT INTO "events" VALUES(1,21,1.79526500007997035978e+09,'checkpoint_completed',NULL,NULL,'{"attempt":1,"step":15,"uri":"/checkpoints/attempt1/step15","plan_version":1}');
INSERT INTO "events" VALUES(1,22,1.79526500008894038199e+09,'replay_finished',NULL,NULL,'{"replay":1,"window":1,"arm":"bf16","purpose":"shadow","fingerprint_equal":true,"compared_steps":5,"first_mismatch_step":1,"steps":[1,2,3,4,5],"losses":[3.998E0,3.9970000000000003E0,3.996E0,3.995E0,3.994E0],"run_losses":[3.999E0,3.998E0,3.997E0,3.996E0,3.995E0],"start_loss_bf16":4E0,"start_loss_plan":4.004E0,"run_end_loss_bf16":3.9E0,"replay_end_loss_bf16":3.899E0}');
INSERT INTO "events" VALUES(1,23,1.7952650001048166752e+09,'replay_finished',NULL,NULL,'{"replay":2,"window":2,"arm":"bf16","purpose":"shadow","fingerprint_equal":true,"compared_steps":5,"first_mismatch_step":6,"steps":[6,7,8,9,10],"losses":[3.794E0,3.7929999999999997E0,3.792E0,3.791E0,3.79E0],"run_losses":[3.994E0,3.993E0,3.992E0,3.991E0,3.99E0],"start_loss_bf16":4E0,"start_loss_plan":4.004E0,"run_end_loss_bf16":3.9E0,"replay_end_loss_bf16":3.6999999999999997E0}');
INSERT INTO "leases" VALUES(1,1,1,1,'v:1','completed',1.79526500008483099932e+09,1.79526500008483099932e+09,0,NULL);
INSERT INTO "leases" VALUES(2,1,2,1,'v:1','completed',1.79526500009550619126e+09,1.79526500009550619126e+09,0,NULL);
INSERT INTO "plans" VALUES(1,1,'version = 1
[[rule]]
match = "*"
fprop = "fp8"
dgrad = "fp8"
wgrad = "fp8"
',1.795264999974337101e+09);
INSERT INTO "replay_steps" VALUES(1,1,1,3.998,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,1,2,3.9970000000000003304e+00,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,1,3,3.996,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,1,4,3.995,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,1,5,3.994,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,2,6,3.794,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,2,7,3.79299999999999970512e+00,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,2,8,3.792,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,2,9,3.791,0.5,'0');
INSERT INTO "replay_steps" VALUES(1,2,10,3.79,0.5,'0');
INSERT INTO "replays" VALUES(1,1,1,'bf16','','shadow',1,50,'done',1,NULL,1795264999.99606,1.79526500008886289597e+09);
INSERT INTO "replays" VALUES(1,2,2,'bf16','','shadow',1,50,'done',1,NULL,1.79526500004014205927e+09,1.79526500010476303104e+09);
INSERT INTO "replays" VALUES(1,3,3,'bf16','','shadow',1,50,'queued',0,NULL,1.79526500007997035978e+09,NULL);
INSERT INTO "replays" VALUES(1,4,2,'same','','triage',1,100,'queued',0,NULL,1.7952650001048166752e+09,NULL);
INSERT INTO "results" VALUES(1,1,1,'v:1','{"device":"test CPU","backend":"cpu","libraries":"none 1.0","build":"test","world_size":1,"threads":1}',4.0,4.004,3.9,3.899,1024,1.5,0.5,1.79526500008888149264e+09);
INSERT INTO "results" VALUES(1,2,1,'v:1','{"device":"test CPU","backend":"cpu","libraries":"none 1.0","build":"test","world_size":1,"threads":1}',4.0,4.004,3.9,3.69999999999999973354e+00,1024,1.5,0.5,1.79526500010477662087e+09);
INSERT INTO "runs" VALUES(1,'old','1','{"name":"old","job_id":"1","fingerprint":{"device":"test CPU","backend":"cpu","libraries":"none 1.0","build":"test","world_size":1,"threads":1},"base_plan":"version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\ndgrad = \"fp8\"\nwgrad = \"fp8\"\n","sites":["model.layers.0.mlp.up_proj","model.layers.0.mlp.down_proj","lm_head"],"layers":1,"parameters":0,"total_steps":1000,"tokens_per_step":64,"checkpoint_every":5,"seed":0,"checkpoint_root":"","faults":[]}','[window]
every = 5
steps = 5
[verifier]
lease_ttl_seconds = 30.0
attempts_max = 2
','live',1.795264999974337101e+09,NULL,NULL,NULL,NULL);
INSERT INTO "steps" VALUES(1,1,1,1,3.999,0.5,0.001,64,0.25,'00000000000003e9',1.79526499998804783819e+09);
INSERT INTO "steps" VALUES(1,1,2,1,3.998,0.5,0.001,64,0.25,'00000000000007d1',1.79526499999034285545e+09);
INSERT INTO "steps" VALUES(1,1,3,1,3.997,0.5,0.001,64,0.25,'0000000000000bb9',1.79526499999126911161e+09);
INSERT INTO "steps" VALUES(1,1,4,1,3.996,0.5,0.001,64,0.25,'0000000000000fa1',1.7952649999921140671e+09);
INSERT INTO "steps" VALUES(1,1,5,1,3.995,0.5,0.001,64,0.25,'0000000000001389',1.79526499999298667911e+09);
INSERT INTO "steps" VALUES(1,1,6,1,3.994,0.5,0.001,64,0.25,'0000000000001771',1.79526500000428485869e+09);
INSERT INTO "steps" VALUES(1,1,7,1,3.993,0.5,0.001,64,0.25,'0000000000001b59',1.79526500001230430603e+09);
INSERT INTO "steps" VALUES(1,1,8,1,3.992,0.5,0.001,64,0.25,'0000000000001f41',1.79526500002040386196e+09);
INSERT INTO "steps" VALUES(1,1,9,1,3.991,0.5,0.001,64,0.25,'0000000000002329',1.79526500002422142033e+09);
INSERT INTO "steps" VALUES(1,1,10,1,3.99,0.5,0.001,64,0.25,'0000000000002711',1.79526500003651523591e+09);
INSERT INTO "steps" VALUES(1,1,11,1,3.989,0.5,0.001,64,0.25,'0000000000002af9',1.79526500004840779307e+09);
INSERT INTO "steps" VALUES(1,1,12,1,3.988,0.5,0.001,64,0.25,'0000000000002ee1',1.79526500005671405795e+09);
INSERT INTO "steps" VALUES(1,1,13,1,3.987,0.5,0.001,64,0.25,'00000000000032c9',1.79526500006886291505e+09);
INSERT INTO "steps" VALUES(1,1,14,1,3.986,0.5,0.001,64,0.25,'00000000000036b1',1.79526500007191824916e+09);
INSERT INTO "steps" VALUES(1,1,15,1,3.985,0.5,0.001,64,0.25,'0000000000003a99',1.79526500007394862173e+09);
INSERT INTO "stream" VALUES(1,1.79526499997459435464e+09,1,'run','{"run":"run-1","state":"live"}');
INSERT INTO "stream" VALUES(2,1795264999.99606,1,'window','{"run":1,"window":1,"kind":"shadow","attempt":1,"start_step":0,"steps":5,"start_uri":"/checkpoints/attempt1/step0","end_uri":"/checkpoints/attempt1/step5","plan_version":1,"state":"open","gap":null,"offset_loss":null,"d_percent":null,"tolerance_percent":null,"opened_at":1795264999.99606,"closed_at":null}');
INSERT INTO "stream" VALUES(3,1.79526500004014205927e+09,1,'window','{"run":1,"window":2,"kind":"shadow","attempt":1,"start_step":5,"steps":5,"start_uri":"/checkpoints/attempt1/step5","end_uri":"/checkpoints/attempt1/step10","plan_version":1,"state":"open","gap":null,"offset_loss":null,"d_percent":null,"tolerance_percent":null,"opened_at":1795265000.040142,"closed_at":null}');
INSERT INTO "stream" VALUES(4,1.79526500007997035978e+09,1,'window','{"run":1,"window":3,"kind":"shadow","attempt":1,"start_step":10,"steps":5,"start_uri":"/checkpoints/attempt1/step10","end_uri":"/checkpoints/attempt1/step15","plan_version":1,"state":"open","gap":null,"offset_loss":null,"d_percent":null,"tolerance_percent":null,"opened_at":1795265000.0799704,"closed_at":null}');
INSERT INTO "stream" VALUES(5,1.79526500008894038199e+09,1,'window','{"run":1,"window":1,"kind":"shadow","attempt":1,"start_step":0,"steps":5,"start_uri":"/checkpoints/attempt1/step0","end_uri":"/checkpoints/attempt1/step5","plan_version":1,"state":"quiet","gap":0.0009999999999998899,"offset_loss":0.0039999999999995595,"d_percent":0.025647601949214924,"tolerance_percent":0.5,"opened_at":1795264999.99606,"closed_at":1795265000.0889404}');
INSERT INTO "stream" VALUES(6,1.7952650001048166752e+09,1,'decision','{"run":1,"decision":1,"time":1795265000.1048167,"kind":"alarm","verdict":"none","action":"none","enforced":0,"attempt":1,"step":15,"window":2,"sites":[],"sentence":"Window 2 (steps 5–10): the FP8 run''s held-out loss is 5.41% above the BF16 replay''s; tolerance 0.50%.","evidence":{"window":2,"start_step":5,"end_step":10,"gap":2.0000000000000018E-1,"offset":3.9999999999995595E-3,"d_percent":5.405405405405411E0,"bf16_loss":3.6999999999999997E0,"tolerance_percent":5E-1,"quiet_windows":1,"quiet_mean_percent":2.5647601949214924E-2,"quiet_deviation_percent":0E0},"event_seq":23}');
INSERT INTO "windows" VALUES(1,1,'shadow',1,0,5,'/checkpoints/attempt1/step0','/checkpoints/attempt1/step5',1,'quiet',9.99999999999889865875e-04,3.9999999999995594635e-03,2.56476019492149244494e-02,0.5,1795264999.99606,1.79526500008894038199e+09);
INSERT INTO "windows" VALUES(1,2,'shadow',1,5,5,'/checkpoints/attempt1/step5','/checkpoints/attempt1/step10',1,'open',NULL,NULL,NULL,NULL,1.79526500004014205927e+09,NULL);
INSERT INTO "windows" VALUES(1,3,'shadow',1,10,5,'/checkpoints/attempt1/step10','/checkpoints/attempt1/step15',1,'open',NULL,NULL,NULL,NULL,1.79526500007997035978e+09,NULL);
