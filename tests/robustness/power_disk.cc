#include "tests/robustness/power_disk.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon::robustness {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSector = 512;

}  // namespace

PowerDisk::PowerDisk(std::vector<std::string> paths) : paths_(std::move(paths)) {
  for (const std::string& path : paths_) {
    const std::string top = fs::path(path).parent_path().string();
    NodePtr& node = tops_[top];
    if (node) continue;
    node = std::make_shared<Node>();
    node->folder = true;
  }
  const auto load = [](const auto& self, const fs::path& path) -> NodePtr {
    auto node = std::make_shared<Node>();
    node->folder = fs::is_directory(path);
    if (node->folder) {
      for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
        node->entries[entry.path().filename().string()] = self(self, entry.path());
      }
      node->kept_entries = node->entries;
    } else {
      node->now = node->kept = read_file(path);
    }
    return node;
  };
  for (const auto& [top, node] : tops_) {
    for (const fs::directory_entry& entry : fs::directory_iterator(top)) {
      if (!watches(entry.path().string())) continue;
      node->entries[entry.path().filename().string()] = load(load, entry.path());
    }
    node->kept_entries = node->entries;
  }
}

bool PowerDisk::watches(const std::string& path) const {
  return !path.ends_with("-shm") &&
         std::ranges::any_of(paths_, [&](const auto& prefix) { return path.starts_with(prefix); });
}

PowerDisk::Place PowerDisk::place_of(const std::string& path) const {
  for (const auto& [top, node] : tops_) {
    if (!path.starts_with(top + "/")) continue;
    Place place{node, {}};
    const fs::path rest = fs::path(path).lexically_relative(top);
    for (auto part = rest.begin(); part != rest.end(); ++part) {
      place.name = part->string();
      if (std::next(part) == rest.end()) return place;
      const auto found = place.folder->entries.find(place.name);
      if (found == place.folder->entries.end()) break;
      place.folder = found->second;
    }
  }
  return {};
}

PowerDisk::NodePtr PowerDisk::node_at(const std::string& path) const {
  if (const auto top = tops_.find(path); top != tops_.end()) return top->second;
  const Place place = place_of(path);
  if (!place.folder) return nullptr;
  const auto found = place.folder->entries.find(place.name);
  return found == place.folder->entries.end() ? nullptr : found->second;
}

int64_t PowerDisk::read(const fs::path& journal) {
  const std::string all = fs::exists(journal) ? read_file(journal) : std::string();
  int64_t records = 0;
  for (size_t at = 0; at + sizeof(PowerRecord) <= all.size();) {
    PowerRecord record;
    std::memcpy(&record, all.data() + at, sizeof record);
    at += sizeof record;
    const size_t rest = record.first_bytes + record.second_bytes + record.data_bytes;
    if (at + rest > all.size()) break;  // killed while it was written
    const std::string first = all.substr(at, record.first_bytes);
    const std::string second = all.substr(at + first.size(), record.second_bytes);
    apply(record, first, second, all.substr(at + first.size() + second.size(), record.data_bytes));
    at += rest;
    ++records;
  }
  return records;
}

void PowerDisk::apply(const PowerRecord& record, const std::string& first,
                      const std::string& second, std::string data) {
  const auto known = [&] {
    const auto found = inodes_.find(record.inode);
    if (found == inodes_.end()) throw Error(fmt::format("nobody has seen inode {}", record.inode));
    return found->second;
  };
  switch (record.event) {
    case PowerEvent::kSeen:
      if (const NodePtr node = node_at(first)) {
        inodes_[record.inode] = node;
      } else {
        throw Error(fmt::format("{} was seen and never made", first));
      }
      return;
    case PowerEvent::kWritten:
    case PowerEvent::kTruncated: {
      const NodePtr node = known();
      node->changes.push_back(
          {record.event == PowerEvent::kTruncated, record.offset, std::move(data)});
      apply(node->changes.back(), node->now);
      return;
    }
    case PowerEvent::kSynced:
      return sync(known());
    default:
      apply_name(record, first, second);
  }
}

void PowerDisk::apply_name(const PowerRecord& record, const std::string& first,
                           const std::string& second) {
  const Place from = place_of(first);
  const NodePtr node = node_at(first);
  const bool makes = record.event == PowerEvent::kCreated || record.event == PowerEvent::kFolder;
  if (makes) {
    auto made = std::make_shared<Node>();
    made->folder = record.event == PowerEvent::kFolder;
    inodes_[record.inode] = made;
    return change({{{from.folder, from.name, made}}, made->folder});
  }
  const auto place = [&](const std::string& path) {
    Place found = place_of(path);
    if (!found.folder) throw Error("nobody has seen the folder of " + path);
    return found;
  };
  if (!node) throw Error(first + " was never made");
  switch (record.event) {
    case PowerEvent::kRemoved:
    case PowerEvent::kRemovedDir:
      return change({{{from.folder, from.name, nullptr}}, node->folder});
    case PowerEvent::kLinked: {
      const Place to = place(second);
      return change({{{to.folder, to.name, node}}, false});
    }
    case PowerEvent::kRenamed: {
      const Place to = place(second);
      return change(
          {{{from.folder, from.name, nullptr}, {to.folder, to.name, node}}, node->folder});
    }
    case PowerEvent::kExchanged: {
      const Place to = place(second);
      const NodePtr other = node_at(second);
      return change({{{from.folder, from.name, other}, {to.folder, to.name, node}}, node->folder});
    }
    default:
      throw Error("a journal of power_cut.cc has an unknown record");
  }
}

void PowerDisk::change(NameChange change) {
  for (const NameChange::Entry& entry : change.entries) {
    if (entry.node) {
      entry.folder->entries[entry.name] = entry.node;
    } else {
      entry.folder->entries.erase(entry.name);
    }
  }
  names_.push_back(std::move(change));
}

namespace {

template <typename Change>
void keep(const Change& change) {
  for (const auto& entry : change.entries) {
    if (entry.node) {
      entry.folder->kept_entries[entry.name] = entry.node;
    } else {
      entry.folder->kept_entries.erase(entry.name);
    }
  }
}

}  // namespace

// Keeps all names of a folder, or all data of a file but not its name.
void PowerDisk::sync(const NodePtr& node) {
  node->kept = node->now;
  node->changes.clear();
  if (!node->folder) return;
  std::erase_if(names_, [&](const NameChange& change) {
    const bool touches = std::ranges::any_of(
        change.entries, [&](const NameChange::Entry& entry) { return entry.folder == node; });
    if (touches) keep(change);
    return touches;
  });
}

void PowerDisk::apply(const DataChange& change, std::string& content) {
  if (change.truncates) {
    content.resize(change.offset);
    return;
  }
  content.resize(std::max<size_t>(content.size(), change.offset + change.data.size()));
  content.replace(change.offset, change.data.size(), change.data);
}

std::string PowerDisk::cut_content(const Node& node, Draw& draw) {
  std::string content = node.kept;
  const int64_t how = draw.between(0, 4);
  if (how == 0) return node.now;
  if (how == 1) return content;
  const auto count = std::ssize(node.changes);
  const int64_t whole = how == 2 ? draw.between(0, count) : 0;  // so many came in their order
  const double chance = how == 3 ? 0.5 : 0.95;
  for (int64_t i = 0; i < count; ++i) {
    const DataChange& change = node.changes[static_cast<size_t>(i)];
    if (how == 2 && i > whole) break;
    const bool torn = how != 2 || i == whole;
    if (!torn || change.truncates) {
      if (!torn || draw.chance(chance)) apply(change, content);
      continue;
    }
    for (uint64_t at = change.offset, end = at + change.data.size(); at < end;) {
      const uint64_t next = std::min(end, (at / kSector + 1) * kSector);
      if (draw.chance(chance)) {
        apply({false, at, change.data.substr(at - change.offset, next - at)}, content);
      } else if (content.size() < next && draw.chance(0.3)) {
        content.resize(next);  // the file grew, and its data did not come
      }
      at = next;
    }
  }
  return content;
}

void PowerDisk::cut_names(Draw& draw) {
  const int64_t how = draw.between(0, 3);
  const auto count = std::ssize(names_);
  const int64_t whole = how == 0 ? count : how == 1 ? 0 : draw.between(0, count);
  bool folders_in_order = true;
  for (int64_t i = 0; i < count; ++i) {
    const NameChange& change = names_[static_cast<size_t>(i)];
    bool kept = i < whole;
    if (how == 3) {  // in any order, but no folder gets two names
      kept = draw.chance(0.5) && (!change.of_folder || folders_in_order);
      if (change.of_folder) folders_in_order = kept;
    }
    if (kept) keep(change);
  }
  names_.clear();
}

void PowerDisk::cut(Draw& draw) {
  cut_names(draw);
  for (const auto& [top, node] : tops_) {
    std::vector<fs::path> old;
    for (const fs::directory_entry& entry : fs::directory_iterator(top)) {
      const std::string path = entry.path().string();
      if (watches(path) || (path.ends_with("-shm") && watches(path.substr(0, path.size() - 4)))) {
        old.push_back(entry.path());
      }
    }
    for (const fs::path& path : old) fs::remove_all(path);
    for (const auto& [name, entry] : node->kept_entries) put(fs::path(top) / name, entry, draw);
  }
}

void PowerDisk::put(const fs::path& at, const NodePtr& node, Draw& draw) const {
  if (!node->folder) {
    const FileDescriptor file = FileDescriptor::open(at, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(file.get(), cut_content(*node, draw), at);
    return;
  }
  fs::create_directory(at);
  for (const auto& [name, entry] : node->kept_entries) put(at / name, entry, draw);
}

void PowerDisk::compare(const std::string& path, const NodePtr& node,
                        std::vector<std::string>& differences) const {
  if (node->folder != fs::is_directory(path) || !fs::exists(path)) {
    differences.push_back(path + " is not there");
    return;
  }
  if (!node->folder) {
    if (read_file(path) != node->now) differences.push_back(path + " has another content");
    return;
  }
  for (const auto& [name, entry] : node->entries) compare(path + "/" + name, entry, differences);
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const bool watched = watches(entry.path().string());
    if (watched && !node->entries.contains(entry.path().filename().string())) {
      differences.push_back(entry.path().string() + " was not seen");
    }
  }
}

std::vector<std::string> PowerDisk::unseen() const {
  std::vector<std::string> differences;
  for (const auto& [top, node] : tops_) compare(top, node, differences);
  return differences;
}

}  // namespace gnomon::robustness
