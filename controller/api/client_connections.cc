#include "controller/api/client_connections.h"

namespace gnomon {
namespace {

// ClientConnections that are leaving, beyond those that stay.
constexpr size_t kLeavingMax = 64;

}  // namespace

ClientConnections::Entry ClientConnections::enter(
    const std::shared_ptr<ClientConnection>& connection) {
  std::shared_ptr<ClientConnection> ending;
  Entry entry = Entry::kWelcome;
  {
    const std::lock_guard lock(mutex_);
    if (places_.size() - leaving_ >= max_) {
      if (leaving_ >= kLeavingMax) return Entry::kNoPlace;
      ++leaving_;
      entry = strangers_.empty() ? Entry::kFull : Entry::kForAnother;
    }
    if (entry == Entry::kForAnother) {
      Place& place = places_.at(strangers_.front());
      ending = place.connection.lock();
      place.leaving = true;
      place.stranger.reset();
      strangers_.pop_front();
    }
    Place& place = places_[connection.get()];
    place.connection = connection;
    place.leaving = entry == Entry::kFull;
    if (!place.leaving) place.stranger = strangers_.insert(strangers_.end(), connection.get());
  }
  if (ending) ending->end();
  return entry;
}

bool ClientConnections::give(const ClientConnection& connection, const std::string& holder,
                             size_t holder_max) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(&connection);
  if (found == places_.end() || found->second.holder == holder) return true;
  Place& place = found->second;
  if (!holder.empty()) {
    size_t& held = held_[holder];
    if (held >= holder_max) return false;
    ++held;
  }
  const bool was_somebodys = !place.holder.empty();
  remove_from_holder(place);
  place.holder = holder;
  if (was_somebodys && holder.empty() && !place.leaving) {
    place.stranger = strangers_.insert(strangers_.end(), &connection);
  }
  return true;
}

void ClientConnections::leave(const ClientConnection& connection) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(&connection);
  if (found == places_.end()) return;
  remove_from_holder(found->second);
  if (found->second.leaving) --leaving_;
  places_.erase(found);
}

void ClientConnections::remove_from_holder(Place& place) {
  if (place.stranger) {
    strangers_.erase(*place.stranger);
    place.stranger.reset();
  }
  const auto held = held_.find(place.holder);
  if (held != held_.end() && --held->second == 0) held_.erase(held);
}

ClientConnections::Counts ClientConnections::counts() const {
  const std::lock_guard lock(mutex_);
  return {places_.size(), strangers_.size()};
}

std::vector<std::shared_ptr<ClientConnection>> ClientConnections::all() const {
  std::vector<std::shared_ptr<ClientConnection>> all;
  const std::lock_guard lock(mutex_);
  all.reserve(places_.size());
  for (const auto& [key, place] : places_) {
    if (auto connection = place.connection.lock()) all.push_back(std::move(connection));
  }
  return all;
}

}  // namespace gnomon
