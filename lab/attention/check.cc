#include "lab/attention/check.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/errors.h"

namespace gnomon {
namespace {

// One candidate's tensors in its memory.
class Run {
 public:
  Run(const AttentionCandidate& candidate, const AttentionCase& problem,
      const AttentionInputs& inputs)
      : by_(candidate), problem_(problem), shape_(problem.shape()) {
    for (auto* buffer : {&qkv_, &d_o_, &o_, &d_qkv_}) *buffer = Buffer<bf16>(*by_.memory);
    for (auto* buffer : {&saved_, &scratch_}) *buffer = Buffer<std::byte>(*by_.memory);
    by_.attention->prepare(shape_);
    write_from_host<bf16>(*by_.memory, inputs.qkv, qkv_.at_least(std::ssize(inputs.qkv)));
    write_from_host<bf16>(*by_.memory, inputs.d_o, d_o_.at_least(std::ssize(inputs.d_o)));
    o_.at_least(std::ssize(inputs.d_o));
    d_qkv_.at_least(std::ssize(inputs.qkv));
    saved_.at_least(cuda::attention_saved_bytes(shape_));
    scratch_.at_least(cuda::attention_scratch_bytes(shape_));
  }

  void forward() {
    const bf16* q = qkv_.data();
    by_.attention->forward(shape_, q, q + key(), q + value(), o_.data(), saved_.data(), by_.stream);
  }
  void backward() {
    const bf16* q = qkv_.data();
    bf16* dq = d_qkv_.data();
    by_.attention->backward(shape_, q, q + key(), q + value(), o_.data(), d_o_.data(), dq,
                            dq + key(), dq + value(), saved_.data(), scratch_.data(), by_.stream);
  }
  AttentionResults results() {
    const HostView<bf16> o(*by_.memory, o_.all()), d_qkv(*by_.memory, d_qkv_.all());
    return {.o = {o.begin(), o.end()}, .d_qkv = {d_qkv.begin(), d_qkv.end()}};
  }
  // Milliseconds of each of several, after one that is not counted.
  template <class Work>
  double milliseconds(int repeats, Work work) {
    work();
    wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) work();
    wait();
    const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - start;
    return all.count() / repeats;
  }

 private:
  int64_t key() const { return problem_.width(); }
  int64_t value() const { return key() + int64_t{problem_.kv_heads} * problem_.head_dim; }
  void wait() {
    bf16 one;
    by_.memory->read(std::as_bytes(std::span(o_.data(), 1)), reinterpret_cast<std::byte*>(&one));
  }

  AttentionCandidate by_;
  AttentionCase problem_;
  AttentionShape shape_;
  Buffer<bf16> qkv_, d_o_, o_, d_qkv_;
  Buffer<std::byte> saved_, scratch_;
};

bool same_bits(const std::vector<bf16>& x, const std::vector<bf16>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(bf16)) == 0;
}

AttentionDifferences differences(const AttentionGroup& x, const AttentionGroup& y) {
  return {.o = attention_difference(x.o, y.o),
          .dq = attention_difference(x.dq, y.dq),
          .dk = attention_difference(x.dk, y.dk),
          .dv = attention_difference(x.dv, y.dv)};
}

// The largest of every group of heads.
AttentionDifferences all_differences(const AttentionCase& problem, const AttentionResults& x,
                                     const AttentionResults& y) {
  AttentionDifferences most;
  for (int64_t sequence = 0; sequence < problem.sequences; ++sequence) {
    for (int head = 0; head < problem.kv_heads; ++head) {
      const AttentionDifferences one =
          differences(group_of(problem, x, sequence, head), group_of(problem, y, sequence, head));
      most = {.o = std::max(most.o, one.o),
              .dq = std::max(most.dq, one.dq),
              .dk = std::max(most.dk, one.dk),
              .dv = std::max(most.dv, one.dv)};
    }
  }
  return most;
}

double tflops(const AttentionCase& problem, int products, double milliseconds) {
  const double terms = static_cast<double>(problem.sequences * problem.heads) *
                       static_cast<double>(problem.tokens) * static_cast<double>(problem.tokens) *
                       problem.head_dim;
  return milliseconds <= 0 ? 0 : products * terms / (milliseconds * 1e9);
}

AttentionFinding found(Run& run, const AttentionCase& problem, const AttentionGroup& exact,
                       const AttentionCheckOptions& options, AttentionResults& results) {
  AttentionFinding finding;
  run.forward();
  run.backward();
  results = run.results();
  run.forward();
  run.backward();
  const AttentionResults again = run.results();
  finding.repeats = same_bits(results.o, again.o) && same_bits(results.d_qkv, again.d_qkv);
  finding.from_exact =
      differences(group_of(problem, results, problem.sequences - 1, problem.kv_heads - 1), exact);
  finding.forward_ms = run.milliseconds(options.repeats, [&] { run.forward(); });
  finding.backward_ms = run.milliseconds(options.repeats, [&] { run.backward(); });
  finding.forward_tflops = tflops(problem, 2, finding.forward_ms);
  finding.backward_tflops = tflops(problem, 5, finding.backward_ms);
  return finding;
}

}  // namespace

double AttentionDifferences::largest() const { return std::max({o, dq, dk, dv}); }

bool AttentionCheck::holds() const {
  return std::ranges::all_of(cases, [&](const AttentionCheckCase& one) {
    return std::ranges::all_of(one.findings, [&](const AttentionFinding& finding) {
      return finding.error.empty() && finding.repeats &&
             finding.from_exact.largest() <= options.difference_most &&
             finding.from_first.largest() <= options.difference_most;
    });
  });
}

AttentionCheck check_attention(
    std::span<const AttentionCandidate> candidates, const std::vector<AttentionCase>& cases,
    const AttentionCheckOptions& options,
    const std::function<void(const AttentionCase&, size_t, size_t)>& progress) {
  AttentionCheck check{.options = options, .cases = {}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const AttentionCase& problem = cases[i];
    progress(problem, i, cases.size());
    const AttentionInputs inputs = attention_inputs(problem, options.seed);
    const AttentionGroup exact =
        exact_group(problem, inputs, problem.sequences - 1, problem.kv_heads - 1, options.threads);
    AttentionCheckCase one{.problem = problem, .findings = {}};
    AttentionResults first;
    for (const AttentionCandidate& candidate : candidates) {
      AttentionFinding finding;
      try {
        Run run(candidate, problem, inputs);
        AttentionResults results;
        finding = found(run, problem, exact, options, results);
        if (first.o.empty()) first = results;
        finding.from_first = all_differences(problem, results, first);
      } catch (const Error& error) {
        finding.error = error.what();
      }
      finding.candidate = candidate.name;
      one.findings.push_back(finding);
    }
    check.cases.push_back(one);
  }
  return check;
}

}  // namespace gnomon
