#include "trainer/engine/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/printable.h"
#include "base/version.h"

namespace gnomon {
namespace {

// `libraries` may have 1,000 bytes in a message (protocol/text.h).
constexpr size_t kOwnMax = 600;
constexpr size_t kWithRanksMax = 1000;
constexpr std::string_view kRanksDiffer = "; the ranks differ ";

// Families of variables: oneDNN chooses its kernels by the first two, the libraries of CUDA by the
// next ones.
constexpr std::array<std::string_view, 6> kFamilies = {"ONEDNN_", "DNNL_",     "CUBLAS",
                                                       "CUDNN_",  "CUDA_MATH", "NVIDIA_TF32"};
constexpr std::array<std::string_view, 7> kSingle = {
    "GNOMON_ATTENTION", "GNOMON_GRAPHS",          // our own kernels, or recorded ones
    "GLIBC_TUNABLES",                             // which functions of libm are taken
    "OMP_DYNAMIC",      "OMP_MAX_ACTIVE_LEVELS",  // fewer threads than were asked for
    "OMP_NESTED",       "OMP_THREAD_LIMIT"};
// Members of a family that only write something down.
constexpr std::array<std::string_view, 5> kWriteOnly = {"VERBOSE", "LOG", "DUMP", "PROFILE",
                                                        "ITT_TASK"};

// What the compiler was allowed to use for this build: the same source has other bits with other
// instructions (products and sums in one rounding, wider partial sums), or without optimization.
std::string compiled_for() {
  std::string found;
  [[maybe_unused]] const auto add = [&found](std::string_view name) {
    found += fmt::format("{}{}", found.empty() ? "" : "+", name);
  };
#ifdef __FMA__
  add("fma");
#endif
#ifdef __AVX2__
  add("avx2");
#endif
#ifdef __AVX512F__
  add("avx512f");
#endif
#ifdef __AVX512VL__
  add("avx512vl");
#endif
#ifdef __AVX512BF16__
  add("avx512bf16");
#endif
#ifdef __AVX512FP16__
  add("avx512fp16");
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  add("sanitizers");
#endif
  return fmt::format("{}, {}", found.empty() ? "baseline" : found, kBuildType);
}

bool computes(std::string_view name) {
  if (std::ranges::find(kSingle, name) != kSingle.end()) return true;
  const bool of_family = std::ranges::any_of(
      kFamilies, [name](std::string_view family) { return name.starts_with(family); });
  return of_family && std::ranges::none_of(kWriteOnly, [name](std::string_view part) {
           return name.find(part) != std::string_view::npos;
         });
}

std::string digest(std::string_view text) { return hex64(hash64(text.data(), text.size())); }

// Printable, and no longer than `bytes_max`: what it loses is in a digest at its end.
std::string fitted(const std::string& text, size_t bytes_max) {
  std::string shown = printable(text);
  if (shown == text && shown.size() <= bytes_max) return shown;
  const std::string end = fmt::format("... ({})", digest(text));
  shown.resize(std::min(shown.size(), bytes_max - end.size()));
  while (!shown.empty() && (static_cast<unsigned char>(shown.back()) & 0xc0) == 0x80) {
    shown.pop_back();
  }
  if (!shown.empty() && static_cast<unsigned char>(shown.back()) >= 0xc0) shown.pop_back();
  return shown + end;
}

std::vector<std::string> names_of_environment() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

std::string text_of(const Fingerprint& it) {
  return fmt::format("{}, {}, {} threads, {}, {}", it.device, it.backend, it.threads, it.libraries,
                     it.build);
}

std::vector<std::string> texts_of_ranks(const Fingerprint& own, Collectives& ranks) {
  std::vector<std::string> texts(static_cast<size_t>(ranks.size()));
  for (int root = 0; root < ranks.size(); ++root) {
    std::string& text = texts[static_cast<size_t>(root)];
    if (root == ranks.rank()) text = text_of(own);
    ranks.broadcast_text(text, root);
  }
  return texts;
}

std::set<std::string> parts_of(const std::string& text) {
  std::set<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find_first_of(",;", at), text.size());
    const size_t begin = std::min(text.find_first_not_of(' ', at), end);
    parts.insert(text.substr(begin, end - begin));
    at = end + 1;
  }
  return parts;
}

// What `text` has that `first` has not, and the other way round.
std::string difference(const std::string& text, const std::string& first) {
  const std::set<std::string> own = parts_of(text), of_first = parts_of(first);
  std::vector<std::string> found;
  for (const std::string& part : own) {
    if (!of_first.contains(part)) found.push_back(part);
  }
  for (const std::string& part : of_first) {
    if (!own.contains(part)) found.push_back("no " + part);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

// Those that differ from rank 0; neighbours that are alike are named together.
std::string differing_ranks(const std::vector<std::string>& texts) {
  std::vector<std::string> found;
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    size_t last = rank;
    while (last + 1 < texts.size() && texts[last + 1] == texts[rank]) ++last;
    if (texts[rank] != texts[0]) {
      const std::string what = difference(texts[rank], texts[0]);
      found.push_back(last == rank ? fmt::format("rank {} has {}", rank, what)
                                   : fmt::format("ranks {} to {} have {}", rank, last, what));
    }
    rank = last;
  }
  return fmt::format("{}", fmt::join(found, "; "));
}

}  // namespace

std::string computing_variables(const std::vector<std::string>& names, const Variables& variables) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (!computes(name)) continue;
    const auto value = variables(name);
    // Others of these tunables say how memory is taken.
    if (name == "GLIBC_TUNABLES" && value && value->find("glibc.cpu") == std::string::npos)
      continue;
    if (value) found.push_back(fmt::format("{}={}", name, *value));
  }
  std::ranges::sort(found);
  return fmt::format("{}", fmt::join(found, ", "));
}

Fingerprint process_fingerprint(const BackendBase& backend) {
  std::string libraries = fmt::format("{}, glibc {}, built for {}", backend.libraries(),
                                      gnu_get_libc_version(), compiled_for());
  const std::string chosen = computing_variables(names_of_environment(), environment_variables());
  if (!chosen.empty()) libraries += "; " + chosen;
  return {.device = backend.device(),
          .backend = backend.name(),
          .libraries = fitted(libraries, kOwnMax),
          .build = fmt::format("gnomon {} ({}, {})", kVersion, kRevision, kCompiler),
          .world_size = 1,
          .threads = backend.threads()};
}

Fingerprint fingerprint_of_ranks(const Fingerprint& own, Collectives& ranks) {
  Fingerprint all = own;
  all.world_size = ranks.size();
  if (ranks.size() == 1) return all;
  // Rank 0's, member by member: the text is for comparing and for people.
  ranks.broadcast_text(all.device, 0);
  ranks.broadcast_text(all.backend, 0);
  ranks.broadcast_text(all.libraries, 0);
  ranks.broadcast_text(all.build, 0);
  double threads = all.threads;
  ranks.broadcast(std::as_writable_bytes(std::span(&threads, 1)), 0);
  all.threads = static_cast<int>(threads);
  const std::vector<std::string> texts = texts_of_ranks(own, ranks);
  const std::string differing = differing_ranks(texts);
  if (differing.empty()) return all;
  const std::string head =
      fmt::format("{}({}): ", kRanksDiffer, digest(fmt::format("{}", fmt::join(texts, "\n"))));
  all.libraries += head + fitted(differing, kWithRanksMax - all.libraries.size() - head.size());
  return all;
}

std::string differences_of_ranks(const Fingerprint& of_ranks) {
  const size_t at = of_ranks.libraries.find(kRanksDiffer);
  return at == std::string::npos ? "" : of_ranks.libraries.substr(at + 2);
}

}  // namespace gnomon
