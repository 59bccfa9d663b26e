// Reading our own JSON files with errors that name the file and the field. Doubles that must come
// back bit for bit are written as strings of their shortest exact decimal form: Boost.JSON 1.81 may
// round a number's last bit.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>

namespace gnomon {

// Throws FormatError with the byte offset of the first error.
boost::json::value parse_json(const std::string& text, const std::string& file);

std::string exact_text(double value);

// The fields of one JSON object. Getters throw FormatError when a field is missing or of another
// type.
class JsonFields {
 public:
  // `value` must outlive this.
  JsonFields(const boost::json::value& value, std::string file);

  const std::string& file() const { return file_; }
  const boost::json::value* find(const std::string& key) const;  // nullptr when absent
  const boost::json::value& at(const std::string& key) const;
  std::string text(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  int integer32(const std::string& key) const;
  bool boolean(const std::string& key) const;
  double exact(const std::string& key) const;  // a string written by exact_text
  double number_or(const std::string& key, double otherwise) const;
  bool boolean_or(const std::string& key, bool otherwise) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

 private:
  const boost::json::object* object_;
  std::string file_;
};

}  // namespace gnomon
