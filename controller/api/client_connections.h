// The connections that are open, and who holds them. Where all are taken, a newcomer gets the place
// of the one that has been a stranger's for the longest: who has no token keeps nobody out, however
// many he opens. Knows nothing of sockets. Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace gnomon {

// What is asked of a connection, from any thread.
class ClientConnection {
 public:
  virtual ~ClientConnection() = default;
  virtual void stop() = 0;           // ends now when it is idle, else after its answer
  virtual void end() = 0;            // ends now, whatever it is at
  virtual void look_at_token() = 0;  // what waits in the name of one that is over ends now
};

class ClientConnections {
 public:
  enum class Entry {
    kWelcome,
    kForAnother,  // welcome; a stranger's ends for it
    kFull,        // gets an answer that says so, and is closed
    kNoPlace,     // is to be closed: so many are leaving already
  };
  struct Counts {
    size_t open = 0;
    size_t strangers = 0;  // of those
  };

  explicit ClientConnections(size_t max) : max_(max) {}

  // A stranger's, until it is said to be somebody's.
  Entry enter(const std::shared_ptr<ClientConnection>& connection);
  // It is `holder` who sends on it from now on; empty: a stranger. False, and all is as before,
  // when he holds `holder_max` already.
  bool give(const ClientConnection& connection, const std::string& holder, size_t holder_max);
  void leave(const ClientConnection& connection);

  Counts counts() const;
  std::vector<std::shared_ptr<ClientConnection>> all() const;

 private:
  using Strangers = std::list<const ClientConnection*>;  // who came first is first
  struct Place {
    std::weak_ptr<ClientConnection> connection;
    std::string holder;
    std::optional<Strangers::iterator> stranger;
    bool leaving = false;  // ends for another, or is answered that there is no place
  };

  void remove_from_holder(Place& place);

  const size_t max_;
  mutable std::mutex mutex_;
  std::unordered_map<const ClientConnection*, Place> places_;
  size_t leaving_ = 0;
  Strangers strangers_;
  std::map<std::string, size_t> held_;  // by holder
};

}  // namespace gnomon
