// Finds the smallest set of sites whose rescue (those sites in BF16) makes the damage go away,
// asking as few replays as it can. The question "does rescuing this set recover?" is taken to be
// monotone: what recovers still recovers when more sites are rescued. Pure: the caller orders the
// replays and brings the answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gnomon::decide {

// The places of sites in the order of suspicion, given their scores: a site's rank is the better
// one of its ranks by φ and by ψ, since a fault of the forward pass shows in φ and one of the
// backward pass in ψ; φ decides between equals. What is not a number is as suspicious as can be.
std::vector<size_t> order_of_suspicion(const std::vector<double>& phi,
                                       const std::vector<double>& psi);

struct SearchLimits {
  int64_t width = 2;         // replays under way at a time
  int64_t replays_max = 40;  // in all
  int64_t guilty_max = 8;    // sites
  int64_t failures_max = 3;  // replays that nobody could finish
};

// The method: among the candidates c1…cn find by bisection the shortest prefix that recovers
// together with the sites already found guilty; its last element is guilty. Keep it, go on with the
// candidates before it, and stop as soon as the guilty alone recover. With width w the interval is
// cut in w + 1 parts. For k guilty sites about k·log2(n) + k replays (width 1); the last of them
// confirms the result by itself. When the candidates are ranked, the guiltiest first, prefixes of
// 1, 2, 4… are tried before the interval between two of them is cut: a single culprit of rank k is
// found and confirmed with at most 2⌈log2 k⌉ + 2 replays, however many sites there are.
struct AttributionSearch {
  std::vector<std::string> candidates;  // in the order of the search; shrinks
  std::vector<std::string> guilty;
  int64_t known_bad = 0;       // the prefix of this length does not recover
  int64_t known_good = 0;      // the prefix of this length does
  bool empty_unknown = false;  // whether the guilty alone recover is not known yet
  std::vector<int64_t> asked;  // prefixes under way
  int64_t replays = 0;
  int64_t failures = 0;
  bool ranked = false;  // the candidates stand in the order of suspicion

  // Rescuing nothing is known not to recover and rescuing all of `sites` is known to: the alarm
  // itself.
  static AttributionSearch start(std::vector<std::string> sites, bool ranked = false);

  // Prefixes to be asked now, so that `width` questions are under way. Counts them as asked.
  std::vector<int64_t> next(const SearchLimits& limits);
  // The sites rescued by such a prefix: the guilty ones and the first `prefix` candidates.
  std::vector<std::string> rescued(int64_t prefix) const;
  // An answer; answers to questions that have become pointless are ignored.
  void answer(int64_t prefix, bool recovers);
  void failed(int64_t prefix);

  // `guilty` is the answer.
  bool done() const;
  // Gave up: a limit was reached and nothing under way can change that.
  bool exhausted(const SearchLimits& limits) const;

 private:
  void settle();
  int64_t next_prefix(int64_t room) const;
};

}  // namespace gnomon::decide
