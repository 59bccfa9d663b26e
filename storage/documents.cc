#include "storage/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/locale/utf.hpp>

#include "base/errors.h"
#include "base/hash.h"
#include "storage/mapped_file.h"
#include "storage/strict_json.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

uint64_t document_key(const std::string& name, int64_t number) {
  const std::string identity = fmt::format("{}\n{}", name, number);
  return hash64(identity.data(), identity.size());
}

InputFile input_file(const fs::path& path, std::string name) {
  std::error_code error;
  auto bytes = fs::file_size(path, error);
  if (error) throw SystemError("read", path.string(), error.value());
  return {path, std::move(name), static_cast<int64_t>(bytes)};
}

std::vector<InputFile> files_under(const fs::path& directory,
                                   const std::vector<std::string>& extensions) {
  std::vector<InputFile> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string extension = entry->path().extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
    if (!entry->is_regular_file(error)) continue;
    files.push_back(
        input_file(entry->path(), entry->path().lexically_relative(directory).generic_string()));
  }
  if (error) throw SystemError("list", directory.string(), error.value());
  std::sort(files.begin(), files.end(),
            [](const InputFile& a, const InputFile& b) { return a.name < b.name; });
  return files;
}

void visit_lines(const InputFile& file, std::shared_ptr<const MappedFile> mapping,
                 const std::string& field, const std::function<void(const Document&)>& visit) {
  std::string_view rest(reinterpret_cast<const char*>(mapping->data()),
                        static_cast<size_t>(mapping->size()));
  int64_t offset = 0;
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    const JsonSource source{file.path.string(), offset};
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    offset += static_cast<int64_t>(line.size()) + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string expected =
        fmt::format("line {} to be a JSON object with a string \"{}\"", number, field);
    json::value value = parse_strict_json(line, source, expected);
    const json::value* text = value.is_object() ? value.get_object().if_contains(field) : nullptr;
    if (text == nullptr || !text->is_string())
      throw FormatError(source.file, source.offset_bytes,
                        !value.is_object() ? "JSON that is no object"
                        : text == nullptr  ? fmt::format("no member \"{}\"", field)
                                           : fmt::format("\"{}\" that is no string", field),
                        expected);
    if (text->get_string().empty()) continue;
    auto owned = std::make_shared<std::string>(std::string_view(text->get_string()));
    visit({*owned, owned, document_key(file.name, number)});
  }
}

}  // namespace

std::vector<InputFile> find_input_files(const std::vector<fs::path>& inputs,
                                        const std::vector<std::string>& extensions) {
  if (inputs.empty()) throw ConfigError("", 0, "--input", "", "at least one file or directory");
  std::vector<InputFile> files;
  for (const fs::path& input : inputs) {
    std::error_code error;
    fs::file_status status = fs::status(input, error);
    if (fs::is_regular_file(status)) {
      files.push_back(input_file(input, input.filename().string()));
      continue;
    }
    if (!fs::is_directory(status))
      throw ConfigError("", 0, "--input", input.string(), "an existing file or directory");
    std::vector<InputFile> found = files_under(input, extensions);
    if (found.empty())
      throw ConfigError(
          "", 0, "--input", input.string(),
          fmt::format("a directory with files ending in {}", fmt::join(extensions, ", ")));
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

void visit_documents(const InputFile& file, const std::string& jsonl_field,
                     const std::function<void(const Document&)>& visit) {
  auto mapping = std::make_shared<MappedFile>(file.path);
  if (mapping->size() == 0) return;
  if (file.path.extension() == ".jsonl") {
    visit_lines(file, mapping, jsonl_field, visit);
    return;
  }
  std::string_view text(reinterpret_cast<const char*>(mapping->data()),
                        static_cast<size_t>(mapping->size()));
  visit({text, mapping, document_key(file.name, 1)});
}

size_t cut_before(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  size_t newline = text.rfind('\n', limit - 1);
  if (newline != std::string_view::npos) return newline + 1;
  size_t cut = limit;
  while (cut > 1 && cut + 4 > limit && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80)
    --cut;
  return cut;
}

bool is_valid_utf8(std::string_view text) {
  using Utf8 = boost::locale::utf::utf_traits<char>;
  const char* next = text.data();
  const char* end = next + text.size();
  while (next != end) {
    if (static_cast<unsigned char>(*next) < 0x80) {
      ++next;
      continue;
    }
    if (!boost::locale::utf::is_valid_codepoint(Utf8::decode(next, end))) return false;
  }
  return true;
}

}  // namespace gnomon
