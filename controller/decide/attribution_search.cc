#include "controller/decide/attribution_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/errors.h"

namespace gnomon::decide {
namespace {

std::vector<size_t> ranks(const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size()), rank(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](size_t i) { return std::isnan(scores[i]) ? HUGE_VAL : scores[i]; });
  for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  return rank;
}

}  // namespace

std::vector<size_t> order_of_suspicion(const std::vector<double>& phi,
                                       const std::vector<double>& psi) {
  const std::vector<size_t> by_phi = ranks(phi), by_psi = ranks(psi);
  std::vector<size_t> order(phi.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) {
    return std::make_pair(std::min(by_phi[i], by_psi[i]), by_phi[i]);
  });
  return order;
}

AttributionSearch AttributionSearch::start(std::vector<std::string> sites, bool ranked) {
  AttributionSearch search;
  search.ranked = ranked;
  search.candidates = std::move(sites);
  search.known_good = static_cast<int64_t>(search.candidates.size());
  search.settle();
  return search;
}

// Takes over every guilty site that the answers so far prove.
void AttributionSearch::settle() {
  while (known_good > 0 && !empty_unknown && known_good - known_bad == 1) {
    guilty.push_back(candidates[static_cast<size_t>(known_good - 1)]);
    candidates.resize(static_cast<size_t>(known_good - 1));
    known_good -= 1;
    known_bad = 0;
    // With no candidate left, "the guilty alone" is the very set that was just shown to recover.
    empty_unknown = known_good > 0;
    asked.clear();
  }
}

bool AttributionSearch::done() const { return known_good == 0; }

bool AttributionSearch::exhausted(const SearchLimits& limits) const {
  if (done()) return false;
  const int64_t found = static_cast<int64_t>(guilty.size());
  if (failures >= limits.failures_max || found > limits.guilty_max) return true;
  if (found == limits.guilty_max && !empty_unknown) return true;
  return asked.empty() && replays >= limits.replays_max;
}

// The next prefix worth asking for while `room` more questions may be under way; 0 when there is
// none.
int64_t AttributionSearch::next_prefix(int64_t room) const {
  if (ranked && known_good == static_cast<int64_t>(candidates.size())) {
    const int64_t tried = asked.empty() ? known_bad : std::max(known_bad, asked.back());
    const int64_t doubled = std::max<int64_t>(1, 2 * tried);
    if (doubled < known_good) return doubled;
  }
  // Cut the widest stretch that no question lies in; into as many parts as there is room for.
  int64_t low = known_bad;
  int64_t widest_low = low;
  int64_t widest = 0;
  for (size_t i = 0; i <= asked.size(); ++i) {
    const int64_t high = i < asked.size() ? asked[i] : known_good;
    if (high - low > widest) {
      widest = high - low;
      widest_low = low;
    }
    low = high;
  }
  if (widest < 2) return 0;
  return widest_low + std::max<int64_t>(1, widest / (room + 1));
}

std::vector<int64_t> AttributionSearch::next(const SearchLimits& limits) {
  std::vector<int64_t> questions;
  const auto ask = [&](int64_t prefix) {
    asked.insert(std::lower_bound(asked.begin(), asked.end(), prefix), prefix);
    replays += 1;
    questions.push_back(prefix);
  };
  const auto room = [&] {
    return static_cast<int64_t>(asked.size()) < limits.width && replays < limits.replays_max;
  };
  if (done() || exhausted(limits)) return questions;
  if (empty_unknown && room() && !std::binary_search(asked.begin(), asked.end(), 0)) ask(0);
  while (room()) {
    const int64_t prefix = next_prefix(limits.width - static_cast<int64_t>(asked.size()));
    if (prefix == 0) break;
    ask(prefix);
  }
  return questions;
}

std::vector<std::string> AttributionSearch::rescued(int64_t prefix) const {
  GNOMON_ASSERT(prefix >= 0 && prefix <= static_cast<int64_t>(candidates.size()));
  std::vector<std::string> sites = guilty;
  sites.insert(sites.end(), candidates.begin(), candidates.begin() + prefix);
  return sites;
}

void AttributionSearch::answer(int64_t prefix, bool recovers) {
  const auto found = std::find(asked.begin(), asked.end(), prefix);
  if (found == asked.end()) return;
  asked.erase(found);
  if (recovers) {
    known_good = prefix;
  } else {
    known_bad = prefix;
    empty_unknown = false;
  }
  // What lies outside the interval now has its answer by monotony.
  std::erase_if(asked, [&](int64_t p) {
    return p >= known_good || p < known_bad || (p == known_bad && !empty_unknown);
  });
  settle();
}

void AttributionSearch::failed(int64_t prefix) {
  const auto found = std::find(asked.begin(), asked.end(), prefix);
  if (found == asked.end()) return;
  asked.erase(found);
  failures += 1;
}

}  // namespace gnomon::decide
