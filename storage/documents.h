// The documents of a data preparation: text files (one document each) and JSONL files (one a line),
// in an order and with keys that do not depend on where the inputs lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

struct InputFile {
  std::filesystem::path path;
  std::string name;  // relative to the input that it was found under
  int64_t bytes = 0;
};

// Files of `inputs`, those of a directory sorted by name and filtered by extension. Throws
// ConfigError naming an input that does not exist or holds no such file, SystemError.
std::vector<InputFile> find_input_files(const std::vector<std::filesystem::path>& inputs,
                                        const std::vector<std::string>& extensions);

struct Document {
  std::string_view text;  // never empty; alive as long as `owner`
  std::shared_ptr<const void> owner;
  uint64_t key = 0;  // hash of the file's name and the document's number in it
};

// Calls `visit(document)` for each non-empty document. JSON lines must be objects with the string
// `jsonl_field`; any other line is a FormatError naming the file, the line and the byte where it
// starts.
void visit_documents(const InputFile& file, const std::string& jsonl_field,
                     const std::function<void(const Document&)>& visit);

// Where to cut `text` so that the front has at most `limit` bytes (and at least one): behind a
// line's end if there is one, else between two UTF-8 characters.
size_t cut_before(std::string_view text, size_t limit);

bool is_valid_utf8(std::string_view text);

}  // namespace gnomon
