#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <vector>

#include "lab/bench/block.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr double kGood = 1.3;
constexpr int kCellWidth = 52, kCellHeight = 28, kLeft = 150, kTop = 108, kBelow = 70;
constexpr const char* kSlow = "#e8a09a";
constexpr const char* kSome = "#f2dc8c";
constexpr const char* kFast = "#9fd3a0";
constexpr const char* kEmpty = "#e4e4e4";

std::string escaped(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else {
      result += c;
    }
  }
  return result;
}

class Picture {
 public:
  void text(int x, int y, std::string_view words, const char* anchor = "start", int size = 13) {
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n",
                         x, y, anchor, size, escaped(words));
  }
  void box(int x, int y, int width, int height, const char* colour, std::string_view tip = {}) {
    body_ += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" "
        "stroke=\"#ffffff\"><title>{}</title></rect>\n",
        x, y, width, height, colour, escaped(tip));
  }
  std::string svg(int width, int height) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" fill=\"#222222\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{2}</svg>\n",
        width, height, body_);
  }

 private:
  std::string body_;
};

template <class T>
int place_of(std::vector<T>& all, const T& value) {
  const auto found = std::ranges::find(all, value);
  if (found != all.end()) return static_cast<int>(found - all.begin());
  all.push_back(value);
  return static_cast<int>(all.size()) - 1;
}

const char* colour_of(double ratio) { return ratio < 1 ? kSlow : ratio <= kGood ? kSome : kFast; }

void draw_cell(Picture& picture, const json::object& cell, int x, int y) {
  const json::value* ratio = cell.if_contains("fp8_over_bf16");
  const int middle = x + kCellWidth / 2, base = y + kCellHeight / 2 + 5;
  if (ratio == nullptr) {
    picture.box(x, y, kCellWidth, kCellHeight, kEmpty, cell.at("empty").as_string());
    picture.text(middle, base, "–", "middle");
    return;
  }
  const auto value = ratio->to_number<double>();
  picture.box(x, y, kCellWidth, kCellHeight, colour_of(value),
              fmt::format("BF16 {:.3f} ms, FP8 {:.3f} ms",
                          1e3 * cell.at("bf16_seconds").to_number<double>(),
                          1e3 * cell.at("fp8_seconds").to_number<double>()));
  picture.text(middle, base, fmt::format("{:.2f}", value), "middle");
}

void draw_legend(Picture& picture, int y) {
  constexpr int kSquare = 16, kStep = 150;
  int x = kLeft;
  const auto entry = [&](const char* colour, const char* words) {
    picture.box(x, y - 13, kSquare, kSquare, colour);
    picture.text(x + kSquare + 6, y, words);
    x += kStep;
  };
  entry(kSlow, "below 1");
  entry(kSome, "1 to 1.3");
  entry(kFast, "above 1.3");
  entry(kEmpty, "does not fit, or failed");
}

}  // namespace

std::string bench_block_picture(const std::string& text) {
  const json::value result = json::parse(text);
  std::vector<std::string> rows;
  std::vector<std::pair<int64_t, int64_t>> columns;
  Picture picture;
  for (const json::value& value : result.at("cells").as_array()) {
    const json::object& cell = value.as_object();
    const std::string row = fmt::format("{} (width {})", cell.at("size").as_string().c_str(),
                                        cell.at("width").to_number<int64_t>());
    const std::pair column{cell.at("sequence").to_number<int64_t>(),
                           cell.at("batch").to_number<int64_t>()};
    const int y = kTop + kCellHeight * place_of(rows, row);
    const int x = kLeft + kCellWidth * place_of(columns, column);
    draw_cell(picture, cell, x, y);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    picture.text(kLeft - 8, kTop + kCellHeight * static_cast<int>(i) + 19, rows[i], "end");
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    const int x = kLeft + kCellWidth * static_cast<int>(i);
    if (i == 0 || columns[i].first != columns[i - 1].first) {
      picture.text(x + 4, kTop - 26, fmt::format("{} tokens", columns[i].first));
    }
    picture.text(x + kCellWidth / 2, kTop - 8, fmt::format("× {}", columns[i].second), "middle");
  }
  const auto word = [&](const char* key) { return result.at(key).as_string().c_str(); };
  picture.text(12, 26,
               fmt::format("One transformer block, forward and backward: FP8 ({}) over BF16, "
                           "times as fast",
                           word("recipe")),
               "start", 16);
  picture.text(12, 48, fmt::format("{}; {}", word("machine"), word("libraries")));
  picture.text(12, kTop - 8, "sequences in a pass");
  const int bottom = kTop + kCellHeight * static_cast<int>(rows.size());
  draw_legend(picture, bottom + 32);
  picture.text(12, bottom + 58, word("build"), "start", 11);
  const int width = kLeft + kCellWidth * static_cast<int>(columns.size()) + 20;
  return picture.svg(std::max(width, 860), bottom + kBelow);
}

}  // namespace gnomon
