#include <fmt/format.h>

#include "cli/json_output.h"
#include "cli/table.h"
#include "lab/attention/check.h"

namespace gnomon {
namespace {

boost::json::object to_json(const AttentionDifferences& it) {
  return {{"o", cli::json_number(it.o)},
          {"dq", cli::json_number(it.dq)},
          {"dk", cli::json_number(it.dk)},
          {"dv", cli::json_number(it.dv)}};
}

boost::json::object to_json(const AttentionFinding& it) {
  boost::json::object object{{"candidate", it.candidate}};
  if (!it.error.empty()) {
    object["error"] = it.error;
    return object;
  }
  object["difference_from_fp64"] = to_json(it.from_exact);
  object["difference_from_first"] = to_json(it.from_first);
  object["same_bits_again"] = it.repeats;
  object["forward_ms"] = cli::json_number(it.forward_ms);
  object["backward_ms"] = cli::json_number(it.backward_ms);
  object["forward_tflops"] = cli::json_number(it.forward_tflops);
  object["backward_tflops"] = cli::json_number(it.backward_tflops);
  return object;
}

}  // namespace

boost::json::object attention_check_to_json(const AttentionCheck& check) {
  boost::json::array cases;
  for (const AttentionCheckCase& one : check.cases) {
    boost::json::array findings;
    for (const AttentionFinding& finding : one.findings) findings.push_back(to_json(finding));
    cases.push_back(boost::json::object{{"sequences", one.problem.sequences},
                                        {"tokens", one.problem.tokens},
                                        {"heads", one.problem.heads},
                                        {"kv_heads", one.problem.kv_heads},
                                        {"head_dim", one.problem.head_dim},
                                        {"findings", findings}});
  }
  return {{"holds", check.holds()},
          {"difference_most", check.options.difference_most},
          {"seed", check.options.seed},
          {"cases", cases}};
}

std::string attention_check_in_words(const AttentionCheck& check) {
  cli::Table table({"case", "by", ">from FP64", ">from the first", "same bits", ">forward ms",
                    ">TFLOP/s", ">backward ms", ">TFLOP/s"});
  std::string errors;
  for (const AttentionCheckCase& one : check.cases) {
    for (const AttentionFinding& it : one.findings) {
      if (!it.error.empty()) {
        errors += fmt::format("{}, {}: {}\n", one.problem.name(), it.candidate, it.error);
        continue;
      }
      table.add({one.problem.name(), it.candidate, fmt::format("{:.1e}", it.from_exact.largest()),
                 fmt::format("{:.1e}", it.from_first.largest()), it.repeats ? "yes" : "NO",
                 fmt::format("{:.3f}", it.forward_ms), fmt::format("{:.1f}", it.forward_tflops),
                 fmt::format("{:.3f}", it.backward_ms), fmt::format("{:.1f}", it.backward_tflops)});
    }
  }
  return fmt::format("{}\n{}{}", table.text(), errors,
                     check.holds()
                         ? "Every result is near FP64 and the same when made again.\n"
                         : "Not every result is near FP64 and the same when made again.\n");
}

}  // namespace gnomon
