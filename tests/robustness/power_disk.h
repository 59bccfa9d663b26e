// What a disk may have after a power cut, made from the journal of power_cut.cc. What was synced is
// kept. Of what was not, anything may have come to the disk: writes all, none, some, in any order,
// torn between sectors; names made, changed and removed in folders that were not synced, or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/robustness/draw.h"
#include "tests/robustness/power_journal.h"

namespace gnomon::robustness {

class PowerDisk {
 public:
  // Reads what is below these paths (prefixes of names, or folders); all of it counts as kept. The
  // folders that they lie in are there.
  explicit PowerDisk(std::vector<std::string> paths);

  // What has happened to it since. The number of records. Throws Error.
  int64_t read(const std::filesystem::path& journal);
  // What differs between what was heard and what is there, while no power is cut: what the library
  // has not seen. A sentence each.
  std::vector<std::string> unseen() const;
  // Puts what a disk may have in the place of what is there.
  void cut(Draw& draw);

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;
  // Writes data at an offset, or sets the size.
  struct DataChange {
    bool truncates = false;
    uint64_t offset = 0;
    std::string data;
  };
  struct Node {
    bool folder = false;
    std::string now;   // content
    std::string kept;  // and what of it is on the disk for sure
    std::vector<DataChange> changes;
    Entries entries;
    Entries kept_entries;
  };
  // One call: it comes to the disk as a whole or not.
  struct NameChange {
    struct Entry {
      NodePtr folder;
      std::string name;
      NodePtr node;  // empty: no such name any more
    };
    std::vector<Entry> entries;
    bool of_folder = false;
  };
  struct Place {
    NodePtr folder;
    std::string name;
  };

  bool watches(const std::string& path) const;
  Place place_of(const std::string& path) const;
  NodePtr node_at(const std::string& path) const;
  void apply(const PowerRecord& record, const std::string& first, const std::string& second,
             std::string data);
  void apply_name(const PowerRecord& record, const std::string& first, const std::string& second);
  void change(NameChange change);
  void sync(const NodePtr& node);
  static void apply(const DataChange& change, std::string& content);
  static std::string cut_content(const Node& node, Draw& draw);
  void cut_names(Draw& draw);
  void put(const std::filesystem::path& at, const NodePtr& node, Draw& draw) const;
  void compare(const std::string& path, const NodePtr& node,
               std::vector<std::string>& differences) const;

  std::vector<std::string> paths_;
  Entries tops_;  // the folders that the paths lie in, by their whole path
  std::map<uint64_t, NodePtr> inodes_;
  std::vector<NameChange> names_;  // not synced, in order
};

}  // namespace gnomon::robustness
