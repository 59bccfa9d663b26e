// Where a rank receives connections of the others: what they say first, and nobody else gets in.
// Only for files of this folder.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "kernels/comm/sockets.h"

namespace gnomon::tcp {

inline constexpr char kMagic[8] = {'g', 'n', 'o', 'm', 'o', 'n', '\r', '\n'};
inline constexpr uint32_t kVersion = 1;

enum class Purpose : uint32_t { kJoin = 1, kData = 2 };

// The first bytes from the one that connects.
struct Hello {
  char magic[8] = {};
  uint32_t version = 0;
  Purpose purpose = Purpose::kJoin;
  uint32_t size = 0, rank = 0;
  uint32_t port = 0;  // where it listens itself, to join
  uint32_t unused = 0;
  uint64_t token = 0;  // of the meeting, for data
  char job[64] = {};
};

// And from rank 0 to one that joins; a text or the table of ranks follows.
struct Answer {
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t refused = 0;
  uint64_t token = 0;
  uint64_t bytes = 0;
};

Answer answer(bool refused, uint64_t token, size_t bytes);
// Tells who came why it is sent away, if it listens.
void refuse(const FileDescriptor& socket, const std::string& why);

class Lobby {
 public:
  struct Guest {
    FileDescriptor socket;
    Hello hello;
    size_t got = 0;  // bytes of `hello`
  };

  explicit Lobby(FileDescriptor listener) : listener_(std::move(listener)) {}
  Endpoint place() const { return own_end(listener_); }

  // The next one that says a whole hello of this version; who says something else is sent away.
  // Nothing when none has come by the deadline.
  std::optional<Guest> next(Deadline deadline);

 private:
  std::optional<Guest> receive();
  enum class Received { kPart, kAll, kNonsense };
  static Received receive(Guest& guest);

  FileDescriptor listener_;
  std::deque<Guest> waiting_;  // have not said all yet
};

}  // namespace gnomon::tcp
