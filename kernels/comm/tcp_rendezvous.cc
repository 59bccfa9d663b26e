#include "kernels/comm/tcp_rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "base/errors.h"
#include "base/host.h"
#include "kernels/comm/tcp_lobby.h"

namespace gnomon::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenTries{100};
// Once all are there, connections among them are a matter of moments.
constexpr double kMeshSecondsMax = 60;
// Rank 0 has something to say to those that came when its own time is up.
constexpr double kAnswerSeconds = 10;
constexpr uint64_t kTextMax = 65536;

// Where a rank listens.
struct Place {
  char host[64] = {};
  uint32_t port = 0;
};

std::string error_text() { return errno == 0 ? "the connection was closed" : std::strerror(errno); }

void check(const Meeting& meeting) {
  const auto refuse_value = [](const char* variable, const std::string& value,
                               const std::string& accepted) {
    throw Error(fmt::format("{} is \"{}\"; accepted: {}", variable, value, accepted));
  };
  if (meeting.size < 1 || meeting.size > kRanksMax) {
    refuse_value("WORLD_SIZE", std::to_string(meeting.size),
                 fmt::format("1 to {}, the number of ranks", kRanksMax));
  }
  if (meeting.rank < 0 || meeting.rank >= meeting.size) {
    refuse_value("RANK", std::to_string(meeting.rank),
                 fmt::format("0 to {}, below WORLD_SIZE", meeting.size - 1));
  }
  if (meeting.address.empty()) {
    refuse_value("MASTER_ADDR", "", "the name or address of rank 0's host");
  }
  if (meeting.port < 1 || meeting.port > 65535) {
    refuse_value("MASTER_PORT", std::to_string(meeting.port), "1 to 65535");
  }
}

Hello hello_of(const Meeting& meeting, Purpose purpose) {
  Hello hello;
  std::copy_n(kMagic, sizeof(kMagic), hello.magic);
  hello.version = kVersion;
  hello.purpose = purpose;
  hello.size = static_cast<uint32_t>(meeting.size);
  hello.rank = static_cast<uint32_t>(meeting.rank);
  meeting.job.copy(hello.job, sizeof(hello.job) - 1);
  return hello;
}

FileDescriptor listen_as_first(const Meeting& meeting) {
  std::string said;
  for (const Endpoint& at : resolve(meeting.address, meeting.port)) {
    try {
      return listen_at(at, 4096);
    } catch (const SystemError& error) {
      if (error.error_number() == EADDRINUSE) {
        throw Error(
            fmt::format("rank 0 cannot listen at {}: another program does. Choose another "
                        "MASTER_PORT, the same for all ranks",
                        at.text()));
      }
      said += fmt::format("{}{}: {}", said.empty() ? "" : ", ", at.text(),
                          std::strerror(error.error_number()));
    }
  }
  throw Error(
      fmt::format("rank 0 cannot listen at MASTER_ADDR \"{}\" ({}); accepted: a name or address of "
                  "its own host",
                  meeting.address, said));
}

// The connections of the ranks above this one.
void accept_data(Lobby& lobby, const Meeting& meeting, uint64_t token, Connections& met) {
  const Deadline deadline = seconds_from_now(kMeshSecondsMax);
  int wanted = meeting.size - 1 - meeting.rank;
  while (wanted > 0) {
    auto guest = lobby.next(deadline);
    if (!guest) {
      throw Error(
          fmt::format("{} of the ranks above {} did not connect with it at {} within "
                      "{:.0f} s: can their hosts reach it?",
                      wanted, meeting.rank, lobby.place().text(), kMeshSecondsMax));
    }
    const Hello& hello = guest->hello;
    const auto rank = static_cast<size_t>(hello.rank);
    if (hello.purpose != Purpose::kData) {
      refuse(guest->socket, fmt::format("the job at {} has all its {} ranks already",
                                        lobby.place().text(), meeting.size));
    } else if (hello.token == token && rank < met.data.size() && !met.data[rank]) {
      met.data[rank] = std::move(guest->socket);
      --wanted;
    }
  }
}

// ---- rank 0 ----

class FirstRank {
 public:
  explicit FirstRank(const Meeting& meeting)
      : meeting_(meeting),
        deadline_(seconds_from_now(meeting.seconds_max)),
        lobby_(listen_as_first(meeting)),
        places_(static_cast<size_t>(meeting.size)) {
    met_.control.resize(static_cast<size_t>(meeting.size));
    met_.data.resize(static_cast<size_t>(meeting.size));
  }

  Connections meet() {
    while (missing() > 0) {
      auto guest = lobby_.next(deadline_);
      if (!guest) end(missing_text());
      join(*guest);
    }
    const uint64_t token = std::random_device()() | uint64_t{std::random_device()()} << 32;
    const auto table = std::as_bytes(std::span(places_));
    const Deadline deadline = seconds_from_now(kMeshSecondsMax);
    for (int rank = 1; rank < meeting_.size; ++rank) {
      const FileDescriptor& to = met_.control[static_cast<size_t>(rank)];
      if (!send_all(to, bytes_of(answer(false, token, table.size())), deadline) ||
          !send_all(to, table, deadline)) {
        end(fmt::format("rank {} was lost while the ranks met: {}", rank, error_text()));
      }
    }
    accept_data(lobby_, meeting_, token, met_);
    return std::move(met_);
  }

 private:
  // One that came and ended since is missing too: its launcher may start it again.
  std::vector<int> missing_ranks() {
    std::vector<int> ranks;
    for (int rank = 1; rank < meeting_.size; ++rank) {
      FileDescriptor& seat = met_.control[static_cast<size_t>(rank)];
      if (seat && is_closed(seat)) seat.close();
      if (!seat) ranks.push_back(rank);
    }
    return ranks;
  }
  int missing() { return static_cast<int>(missing_ranks().size()); }

  std::string missing_text() {
    const std::vector<int> ranks = missing_ranks();
    return fmt::format("{} {} of {} did not come to rank 0 at {} within {:.0f} s{}{}",
                       ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "), meeting_.size,
                       lobby_.place().text(), meeting_.seconds_max, refused_.empty() ? "" : "; ",
                       refused_);
  }

  // The same to all that came.
  [[noreturn]] void end(const std::string& why) {
    for (const FileDescriptor& socket : met_.control) {
      if (socket) refuse(socket, why);
    }
    throw Error(why);
  }

  void send_away(const Lobby::Guest& guest, const std::string& why) {
    refuse(guest.socket, why);
    refused_ = fmt::format("sent away: one from {} ({})", other_end(guest.socket).host(), why);
  }

  void join(Lobby::Guest& guest) {
    missing_ranks();  // frees the seats of those that ended
    const Hello& hello = guest.hello;
    if (hello.purpose != Purpose::kJoin) return;
    Hello own = hello_of(meeting_, Purpose::kJoin);
    const std::string job(hello.job, strnlen(hello.job, sizeof(hello.job)));
    if (job != own.job || hello.size != own.size) {
      return send_away(guest,
                       fmt::format("rank 0 at {} has job \"{}\" of {} ranks, not \"{}\" of {}",
                                   lobby_.place().text(), own.job, own.size, job, hello.size));
    }
    const auto rank = static_cast<size_t>(hello.rank);
    if (rank == 0 || rank >= met_.control.size()) {
      return send_away(guest, fmt::format("RANK {} is none of 1 to {}", rank, meeting_.size - 1));
    }
    FileDescriptor& seat = met_.control[rank];
    const Endpoint from = other_end(guest.socket);
    if (seat) {
      const std::string why = fmt::format("two processes have RANK {}: one on {}, one on {}", rank,
                                          other_end(seat).host(), from.host());
      refuse(guest.socket, why);
      end(why);
    }
    places_[rank] = {};
    from.host().copy(places_[rank].host, sizeof(Place::host) - 1);
    places_[rank].port = hello.port;
    seat = std::move(guest.socket);
  }

  const Meeting& meeting_;
  Deadline deadline_;
  Lobby lobby_;
  std::vector<Place> places_;
  Connections met_;
  std::string refused_;
};

// ---- the others ----

struct Joined {
  FileDescriptor control;
  std::optional<Lobby> lobby;
  uint64_t token = 0;
  std::vector<Place> places;
};

// False when the other side went away before it said a word, as one that ends does.
bool receive_answer(const Meeting& meeting, Joined& joined) {
  const Deadline deadline = seconds_from_now(meeting.seconds_max + kAnswerSeconds);
  const std::string place = other_end(joined.control).text();
  Answer head;
  if (!receive_all(joined.control, room_of(head), deadline)) {
    if (errno != ETIMEDOUT) return false;
    throw Error(fmt::format("rank 0 at {} did not answer within {:.0f} s", place,
                            meeting.seconds_max + kAnswerSeconds));
  }
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.bytes > kTextMax * 16) {
    throw Error(
        fmt::format("what listens at {} is no rank 0 of this program: choose another "
                    "MASTER_PORT, the same for all ranks",
                    place));
  }
  if (head.version != kVersion && head.refused == 0) {
    throw Error(fmt::format("rank 0 at {} speaks version {} of the ranks' protocol, this one {}",
                            place, head.version, kVersion));
  }
  std::vector<std::byte> rest(static_cast<size_t>(head.bytes));
  if (!receive_all(joined.control, rest, seconds_from_now(kAnswerSeconds))) {
    throw Error(fmt::format("rank 0 at {} was lost while the ranks met: {}", place, error_text()));
  }
  if (head.refused != 0) {
    throw Error(std::string(reinterpret_cast<const char*>(rest.data()), rest.size()));
  }
  GNOMON_ASSERT(rest.size() == sizeof(Place) * static_cast<size_t>(meeting.size));
  joined.token = head.token;
  joined.places.resize(static_cast<size_t>(meeting.size));
  std::memcpy(joined.places.data(), rest.data(), rest.size());
  return true;
}

Joined join_first(const Meeting& meeting) {
  const Deadline deadline = seconds_from_now(meeting.seconds_max);
  std::string said = "nothing was tried";
  const std::vector<Endpoint> places = resolve(meeting.address, meeting.port);
  while (Clock::now() < deadline) {
    for (const Endpoint& at : places) {
      auto control = connect_to(at, deadline);
      if (!control) {
        said = fmt::format("{}: {}", at.text(), error_text());
        continue;
      }
      Joined joined;
      joined.control = std::move(*control);
      Endpoint own = own_end(joined.control);
      own.set_port(0);
      joined.lobby.emplace(listen_at(own, 4096));
      Hello hello = hello_of(meeting, Purpose::kJoin);
      hello.port = static_cast<uint32_t>(joined.lobby->place().port());
      if (send_all(joined.control, bytes_of(hello), deadline) && receive_answer(meeting, joined)) {
        return joined;
      }
      said = fmt::format("{}: {}", at.text(), error_text());
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  throw Error(fmt::format("rank {} found no rank 0 within {:.0f} s ({})", meeting.rank,
                          meeting.seconds_max, said));
}

Connections meet_the_first(const Meeting& meeting) {
  Joined joined = join_first(meeting);
  Connections met;
  met.data.resize(static_cast<size_t>(meeting.size));
  Hello hello = hello_of(meeting, Purpose::kData);
  hello.token = joined.token;
  const Deadline deadline = seconds_from_now(kMeshSecondsMax);
  for (int other = 0; other < meeting.rank; ++other) {
    const Place& place = joined.places[static_cast<size_t>(other)];
    const Endpoint to = other == 0 ? other_end(joined.control)
                                   : resolve(place.host, static_cast<int>(place.port)).front();
    auto socket = connect_to(to, deadline);
    if (!socket || !send_all(*socket, bytes_of(hello), deadline)) {
      throw Error(fmt::format("rank {} cannot connect with rank {} at {}: {}", meeting.rank, other,
                              to.text(), error_text()));
    }
    met.data[static_cast<size_t>(other)] = std::move(*socket);
  }
  accept_data(*joined.lobby, meeting, joined.token, met);
  met.control.push_back(std::move(joined.control));
  return met;
}

}  // namespace

Connections meet(const Meeting& meeting) {
  check(meeting);
  allow_many_files();
  return meeting.rank == 0 ? FirstRank(meeting).meet() : meet_the_first(meeting);
}

}  // namespace gnomon::tcp
