#include "protocol/site_glob.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/precision_plan.h"

namespace gnomon {
namespace {

std::vector<std::string_view> split_alternatives(std::string_view inside) {
  std::vector<std::string_view> result;
  size_t start = 0;
  while (true) {
    const size_t comma = inside.find(',', start);
    result.push_back(inside.substr(start, comma - start));
    if (comma == std::string_view::npos) return result;
    start = comma + 1;
  }
}

}  // namespace

std::string glob_error(std::string_view glob) {
  if (glob.empty()) return "an empty glob matches nothing";
  size_t alternatives = 1;
  size_t open = std::string_view::npos;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (glob[i] == '{') {
      if (open != std::string_view::npos) return "braces inside braces";
      open = i;
    } else if (glob[i] == '}') {
      if (open == std::string_view::npos) return "a closing brace without an opening one";
      alternatives *= split_alternatives(glob.substr(open + 1, i - open - 1)).size();
      if (alternatives > kGlobAlternativesMax) {
        return fmt::format("more than {} alternatives", kGlobAlternativesMax);
      }
      open = std::string_view::npos;
    }
  }
  return open == std::string_view::npos ? "" : "an opening brace without a closing one";
}

std::vector<std::string> expand_glob(std::string_view glob, int layers) {
  std::vector<std::string> results = {""};
  while (!glob.empty()) {
    const size_t open = glob.find('{');
    for (std::string& result : results) result += glob.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = glob.find('}', open);
    std::vector<std::string> longer;
    for (const std::string& result : results) {
      for (std::string_view part : split_alternatives(glob.substr(open + 1, close - open - 1))) {
        longer.push_back(result +
                         (part == "last" ? std::to_string(layers - 1) : std::string(part)));
      }
    }
    results = std::move(longer);
    glob.remove_prefix(close + 1);
  }
  return results;
}

bool simple_glob_matches(std::string_view glob, std::string_view name) {
  size_t g = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;  // the last '*' seen, and where the name stood then
  size_t retry = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      retry = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g;
      ++n;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

bool site_matches(std::string_view glob, std::string_view site, int layers) {
  if (!glob_error(glob).empty()) return false;
  const std::vector<std::string> globs = expand_glob(glob, layers);
  return std::any_of(globs.begin(), globs.end(),
                     [site](const std::string& each) { return simple_glob_matches(each, site); });
}

}  // namespace gnomon
