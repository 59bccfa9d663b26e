#include "protocol/json.h"

#include <boost/json/monotonic_resource.hpp>

#include "protocol/record_json.h"

namespace gnomon {
namespace record_json {

std::string kind_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::object:
      return "an object";
    case json::kind::array:
      return "an array";
    default:
      break;
  }
  constexpr size_t kShownMax = 80;
  std::string text = json::serialize(value);
  return text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "...";
}

std::string valid_utf8(const std::string& text) {
  std::string result = text;
  for (size_t i = 0; i < result.size();) {
    const auto lead = static_cast<unsigned char>(result[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    bool good = length > 0 && i + length <= result.size();
    for (size_t k = 1; good && k < length; ++k) {
      const auto next = static_cast<unsigned char>(result[i + k]);
      unsigned char low = 0x80;
      unsigned char high = 0xbf;
      if (k == 1 && lead == 0xe0) low = 0xa0;   // overlong
      if (k == 1 && lead == 0xed) high = 0x9f;  // surrogates
      if (k == 1 && lead == 0xf0) low = 0x90;   // overlong
      if (k == 1 && lead == 0xf4) high = 0x8f;  // beyond U+10FFFF
      good = next >= low && next <= high;
    }
    if (!good) result[i] = '?';
    i += good ? length : 1;
  }
  return result;
}

namespace {

std::string bound(double value) {
  constexpr double kExact = 1e15;
  return std::abs(value) <= kExact && value == std::floor(value)
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{:g}", value);
}

}  // namespace

std::string accepted_by(const Range& range) {
  std::string text = fmt::format("a number from {} to {}", bound(range.least), bound(range.most));
  if (range.nan) text += ", \"NaN\"";
  if (range.infinity) text += ", \"Infinity\"";
  if (range.minus_infinity) text += ", \"-Infinity\"";
  return text;
}

std::string Place::text() const {
  if (parent_ == nullptr) return {};
  const std::string before = parent_->text();
  if (member_.empty()) return fmt::format("{}[{}]", before, index_);
  return before.empty() ? std::string(member_) : fmt::format("{}.{}", before, member_);
}

void refuse(const Place& place, const json::value& found, const char* accepted) {
  throw JsonError(place.text(), kind_of(found), accepted);
}

void refuse_number(const Place& place, double value, const Range& range) {
  throw JsonError(place.text(), fmt::format("{}", value), accepted_by(range));
}

void refuse_number(const Place& place, int64_t value, const Range& range) {
  throw JsonError(place.text(), fmt::format("{}", value), accepted_by(range));
}

void refuse_text(const Place& place, const std::string& text, const std::string& accepted) {
  const bool shown = text.size() <= 200 && is_one_line(text);
  throw JsonError(place.text(),
                  shown ? fmt::format("\"{}\"", text) : fmt::format("{} bytes", text.size()),
                  accepted);
}

void refuse_items(const Place& place, size_t items, size_t most) {
  throw TooManyItems(place.text(), fmt::format("{} items", items), fmt::format("at most {}", most));
}

void refuse_missing(const Place& place, const char* member) {
  throw JsonError(Place(place, member).text(), "nothing", fmt::format("the member {}", member));
}

void refuse_unknown(const Place& place, const json::object& object,
                    const std::vector<std::string_view>& known) {
  const auto unknown = std::ranges::find_if(object, [&](const auto& entry) {
    return std::ranges::find(known, std::string_view(entry.key())) == known.end();
  });
  throw JsonError(Place(place, unknown->key()).text(), "an unknown member",
                  fmt::format("one of {}", fmt::join(known, ", ")));
}

void NameList::add(const char* name) { names.emplace_back(name); }

void Reading::check_text(const Place& place, const std::string& text) const {
  const bool hash = member.text.form == Text::Form::kHash;
  if (rules <= Rules::kStored || (rules == Rules::kNumbersAndHashes && !hash)) return;
  const std::string accepted = what_is_accepted(text, member);
  if (!accepted.empty()) refuse_text(place, text, accepted);
}

}  // namespace record_json

namespace {

namespace json = boost::json;
using record_json::Rules;

template <typename Message>
Message parse_message(std::string_view text, Rules rules) {
  // The values lie together, in a first block of twice the text's size, and are let go of at once;
  // blocks grow, so those of a long text are made singly.
  constexpr size_t kAtOnceMax = size_t{256} << 10;
  if (text.size() > kAtOnceMax) {
    return record_json::read_message<Message>(parse_json_exactly(text), rules);
  }
  json::monotonic_resource memory(2 * text.size() + 1);
  return record_json::read_message<Message>(parse_json_exactly(text, &memory), rules);
}

}  // namespace

JsonError::JsonError(std::string path, std::string found, std::string accepted)
    : Error(fmt::format("JSON: {}{}found {}, expected {}", path, path.empty() ? "" : ": ", found,
                        accepted)),
      path_(std::move(path)),
      accepted_(std::move(accepted)) {}

template <typename Message>
std::string to_json(const Message& message) {
  return json::serialize(record_json::write_value(message));
}

template <typename Message>
Message from_json(std::string_view text) {
  return parse_message<Message>(text, Rules::kStored);
}

template <typename Message>
Message from_answer(std::string_view text) {
  return parse_message<Message>(text, Rules::kAnswer);
}

template <typename Message>
Message from_request(std::string_view body) {
  return parse_message<Message>(body, Rules::kAll);
}

template <typename Message>
Message from_request_with_any_text(std::string_view body) {
  return parse_message<Message>(body, Rules::kNumbersAndHashes);
}

std::string strings_to_json(const std::vector<std::string>& strings) {
  return json::serialize(record_json::write_value(strings));
}

std::vector<std::string> strings_from_json(std::string_view text) {
  static constexpr Member kAny;
  std::vector<std::string> strings;
  record_json::Reading{kAny, Rules::kStored}.read(parse_json_exactly(text), record_json::Place(),
                                                  strings);
  return strings;
}

#define GNOMON_RECORD(R)                        \
  template std::string to_json<R>(const R&);    \
  template R from_json<R>(std::string_view);    \
  template R from_answer<R>(std::string_view);  \
  template R from_request<R>(std::string_view); \
  template R from_request_with_any_text<R>(std::string_view);
GNOMON_EACH_RECORD(GNOMON_RECORD)
#undef GNOMON_RECORD

}  // namespace gnomon
