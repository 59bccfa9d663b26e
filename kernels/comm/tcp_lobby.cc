#include "kernels/comm/tcp_lobby.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace gnomon::tcp {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(Hello) == 104 && sizeof(Answer) == 32);

// Connections that say nothing; the oldest gives way.
constexpr size_t kWaitingMax = 2048;
constexpr double kRefusalSecondsMax = 1;

}  // namespace

Answer answer(bool refused, uint64_t token, size_t bytes) {
  Answer it;
  std::copy_n(kMagic, sizeof(kMagic), it.magic);
  it.version = kVersion;
  it.refused = refused ? 1 : 0;
  it.token = token;
  it.bytes = bytes;
  return it;
}

void refuse(const FileDescriptor& socket, const std::string& why) {
  const Deadline deadline = seconds_from_now(kRefusalSecondsMax);
  if (send_all(socket, bytes_of(answer(true, 0, why.size())), deadline)) {
    send_all(socket, std::as_bytes(std::span(why)), deadline);
  }
}

Lobby::Received Lobby::receive(Guest& guest) {
  const std::span<std::byte> room = room_of(guest.hello).subspan(guest.got);
  const ssize_t got = ::recv(guest.socket.get(), room.data(), room.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Received::kPart;
  if (got <= 0) return Received::kNonsense;
  guest.got += static_cast<size_t>(got);
  if (std::memcmp(guest.hello.magic, kMagic, std::min(guest.got, sizeof(kMagic))) != 0) {
    return Received::kNonsense;
  }
  constexpr size_t kWithVersion = offsetof(Hello, version) + sizeof(Hello::version);
  if (guest.got >= kWithVersion && guest.hello.version != kVersion) {
    refuse(guest.socket,
           fmt::format("this rank speaks version {} of the ranks' protocol, the one at {} version "
                       "{}: all ranks must be of one build",
                       guest.hello.version, own_end(guest.socket).text(), kVersion));
    return Received::kNonsense;
  }
  return guest.got == sizeof(Hello) ? Received::kAll : Received::kPart;
}

std::optional<Lobby::Guest> Lobby::receive() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const Received received = receive(*it);
    if (received == Received::kPart) {
      ++it;
      continue;
    }
    Guest guest = std::move(*it);
    it = waiting_.erase(it);
    if (received == Received::kAll) return guest;
  }
  return std::nullopt;
}

std::optional<Lobby::Guest> Lobby::next(Deadline deadline) {
  while (true) {
    while (auto socket = accept_from(listener_)) {
      if (waiting_.size() == kWaitingMax) waiting_.pop_front();
      waiting_.push_back({std::move(*socket), {}, 0});
    }
    if (auto guest = receive()) return guest;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::vector<pollfd> all{{listener_.get(), POLLIN, 0}};
    for (const Guest& guest : waiting_) all.push_back({guest.socket.get(), POLLIN, 0});
    ::poll(all.data(), all.size(), poll_milliseconds(deadline));
  }
}

}  // namespace gnomon::tcp
