#include "trainer/engine/engine_ranks.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>
#include <new>

#include "base/errors.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/engine/json_fields.h"

namespace gnomon {
namespace {

namespace json = boost::json;

EngineMode mode_from(const std::string& argument) {
  const json::value root = parse_json(argument, "rank 0's mode");
  const JsonFields fields(root, "rank 0's mode");
  return {.role = static_cast<EngineRole>(fields.integer("role")),
          .fakequant = fields.boolean("fakequant"),
          .order_seed = fields.integer("order_seed")};
}

void perturb(Engine& engine, const std::string& argument) {
  const json::value root = parse_json(argument, "rank 0's perturbation");
  const JsonFields fields(root, "rank 0's perturbation");
  engine.perturb(fields.integer("seed"), fields.exact("scale"));
}

// True when an error of this call is thrown on every rank or on none.
bool fails_together(EngineCall call) {
  return call == EngineCall::kCreate || call == EngineCall::kLoad ||
         call == EngineCall::kSnapshotMemory || call == EngineCall::kFingerprint;
}

void make_call(EngineRanks& ranks, EngineCall call, const JsonFields& fields,
               std::map<int64_t, std::unique_ptr<Engine>>& engines) {
  const int64_t number = fields.integer("engine");
  const std::string argument = fields.text("argument");
  const bool flag = fields.boolean("flag");
  if (call == EngineCall::kCreate) {
    engines[number] =
        std::make_unique<Engine>(EngineConfig::from_json(argument, "rank 0's configuration"),
                                 flag ? EngineRole::kLive : EngineRole::kReplay, &ranks,
                                 ranks.backends ? &*ranks.backends : nullptr);
    return;
  }
  if (call == EngineCall::kDestroy) {
    engines.erase(number);
    return;
  }
  if (call == EngineCall::kFingerprint) {
    fingerprint_of_ranks(ranks, fields.text("argument"), static_cast<int>(number));
    return;
  }
  Engine& engine = *engines.at(number);
  switch (call) {
    case EngineCall::kInitialize:
      return engine.initialize();
    case EngineCall::kLoad:
      return engine.load(argument, flag);
    case EngineCall::kCheckpoint:
      engine.checkpoint();
      return;
    case EngineCall::kSnapshotMemory:
      return engine.allocate_snapshot_memory();
    case EngineCall::kSnapshot:
      return engine.snapshot();
    case EngineCall::kRestore:
      return engine.restore();
    case EngineCall::kPrepare:
      return engine.prepare();
    case EngineCall::kSetPlan:
      return engine.set_plan(PrecisionPlan::parse(argument, "rank 0's plan"));
    case EngineCall::kSetMode:
      return engine.set_mode(mode_from(argument));
    case EngineCall::kPerturb:
      return perturb(engine, argument);
    case EngineCall::kTrainStep:
      engine.train_step(nullptr, flag);
      return;
    case EngineCall::kEvaluate:
      engine.evaluate(PrecisionPlan::parse(argument, "rank 0's plan"));
      return;
    case EngineCall::kInspect:
      return engine.accompany_inspection();
    case EngineCall::kWeightsHash:
      engine.weights_hash();
      return;
    case EngineCall::kCreate:
    case EngineCall::kDestroy:
    case EngineCall::kFingerprint:
    case EngineCall::kEnd:
      break;
  }
}

}  // namespace

void send_to_followers(EngineRanks& ranks, EngineCall call, int64_t engine, std::string argument,
                       bool flag) {
  if (!ranks.many() || ranks.collectives->rank() != 0) return;
  std::string text = json::serialize(json::object{{"call", static_cast<int64_t>(call)},
                                                  {"engine", engine},
                                                  {"argument", std::move(argument)},
                                                  {"flag", flag}});
  ranks.collectives->broadcast_text(text, 0);
}

std::string mode_argument(const EngineMode& mode) {
  return json::serialize(json::object{{"role", static_cast<int64_t>(mode.role)},
                                      {"fakequant", mode.fakequant},
                                      {"order_seed", mode.order_seed}});
}

std::string perturb_argument(int64_t seed, double scale) {
  return json::serialize(json::object{{"seed", seed}, {"scale", exact_text(scale)}});
}

std::string cause_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  const std::string text = error.what();
  return text.empty() ? "an error without a text" : text;
}

Fingerprint fingerprint_of_ranks(EngineRanks& ranks, const std::string& device, int threads) {
  send_to_followers(ranks, EngineCall::kFingerprint, threads, device);
  Fingerprint own;
  do_together(*ranks.collectives, [&] {
    const BackendMakers makers =
        ranks.backends ? *ranks.backends : backend_makers(device_from_name(device, ""));
    own = process_fingerprint(*makers.bf16(threads));
  });
  return fingerprint_of_ranks(own, *ranks.collectives);
}

void do_together(Collectives& ranks, const std::function<void()>& body) {
  if (ranks.size() == 1) return body();
  std::exception_ptr own;
  std::string text;
  try {
    body();
  } catch (const std::exception& error) {
    own = std::current_exception();
    text = cause_of(error);
    // Rank 0 gets it as well and reports it.
    if (ranks.rank() != 0) {
      fmt::print(stderr, "rank {} of {}: {}\n", ranks.rank(), ranks.size(), text);
    }
  }
  try {
    ranks.agree_on_success(text);
  } catch (const Error&) {
    if (own != nullptr) std::rethrow_exception(own);
    throw;
  }
}

void follow_engines(EngineRanks& ranks) {
  GNOMON_ASSERT(ranks.collectives->rank() != 0);
  std::map<int64_t, std::unique_ptr<Engine>> engines;
  while (true) {
    std::string text;
    ranks.collectives->expect_pause();
    ranks.collectives->broadcast_text(text, 0);
    const json::value root = parse_json(text, "rank 0's call");
    const JsonFields fields(root, "rank 0's call");
    const EngineCall call = static_cast<EngineCall>(fields.integer("call"));
    if (call == EngineCall::kEnd) return;
    try {
      make_call(ranks, call, fields, engines);
    } catch (const Error&) {
      // Rank 0 has it too and reports it. Of any other call the ranks do not agree.
      if (!fails_together(call)) throw;
    }
  }
}

void end_followers(EngineRanks& ranks) { send_to_followers(ranks, EngineCall::kEnd, 0); }

int lead_or_follow(Collectives& collectives, const std::function<int(EngineRanks&)>& lead,
                   std::optional<BackendMakers> backends) {
  EngineRanks ranks{.collectives = &collectives, .backends = std::move(backends)};
  try {
    if (collectives.rank() != 0) {
      follow_engines(ranks);
      return 0;
    }
    const int status = lead(ranks);
    end_followers(ranks);
    return status;
  } catch (const std::exception& error) {
    if (ranks.many()) collectives.abort(cause_of(error));
    throw;
  }
}

}  // namespace gnomon
