// Attention by several hands, cuDNN's and our own: how far each is from FP64 and from the others,
// whether it gives the same bits again, and how fast it is.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/memory.h"
#include "lab/attention/problem.h"

namespace gnomon {

struct AttentionCandidate {
  std::string name;
  cuda::Attention* attention = nullptr;
  Memory* memory = nullptr;
  cuda::Stream stream = nullptr;
};

struct AttentionDifferences {
  double o = 0, dq = 0, dk = 0, dv = 0;
  double largest() const;
};

struct AttentionFinding {
  std::string candidate;
  std::string error;                // why it gave no result; empty when it did
  AttentionDifferences from_exact;  // of the last group of heads of the last sequence
  AttentionDifferences from_first;  // of all heads, beside the first candidate's
  bool repeats = false;             // forward and backward gave the same bits twice
  double forward_ms = 0, backward_ms = 0;
  double forward_tflops = 0, backward_tflops = 0;  // of the half that the mask leaves
};

struct AttentionCheckOptions {
  uint64_t seed = 1;
  int threads = 1;
  int repeats = 5;                // of what is timed
  double difference_most = 1e-4;  // more is a failure
};

struct AttentionCheckCase {
  AttentionCase problem;
  std::vector<AttentionFinding> findings;  // in the order of the candidates
};

struct AttentionCheck {
  AttentionCheckOptions options;
  std::vector<AttentionCheckCase> cases;
  // True when every candidate gave every result, near enough and twice the same.
  bool holds() const;
};

// `progress` is called with the case that begins, its number from 0 on and how many there are.
AttentionCheck check_attention(
    std::span<const AttentionCandidate> candidates, const std::vector<AttentionCase>& cases,
    const AttentionCheckOptions& options,
    const std::function<void(const AttentionCase&, size_t, size_t)>& progress);

boost::json::object attention_check_to_json(const AttentionCheck& check);
// A table and a sentence.
std::string attention_check_in_words(const AttentionCheck& check);

}  // namespace gnomon
