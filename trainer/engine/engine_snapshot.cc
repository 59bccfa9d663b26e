// An engine's state kept in memory while it replays, and brought back.
#include "base/errors.h"
#include "trainer/engine/engine_impl.h"

namespace gnomon {
namespace {

void keep(Memory& memory, std::span<const std::byte> from, std::span<std::byte> on_host) {
  GNOMON_ASSERT(from.size() == on_host.size());
  if (!from.empty()) memory.read(from, on_host.data());
}

void bring_back(Memory& memory, std::span<const std::byte> on_host, std::span<std::byte> to) {
  GNOMON_ASSERT(to.size() == on_host.size());
  if (!to.empty()) memory.write(on_host, to.data());
}

}  // namespace

EngineSnapshot::EngineSnapshot(int64_t state_bytes, int64_t weight_bytes, int site_count)
    : scaling(site_count) {
  for (bool committed : {false, true}) {
    masters_and_moments = arena.allocate<std::byte>(state_bytes);
    weights = arena.allocate<std::byte>(weight_bytes);
    if (!committed) arena.commit();
  }
}

std::unique_ptr<EngineSnapshot> make_snapshot_room(const EngineImpl& self) {
  return std::make_unique<EngineSnapshot>(std::ssize(self.optimizer->state().content()),
                                          std::ssize(self.working().kept()),
                                          static_cast<int>(self.model->sites().size()));
}

// Working weights are kept too: what travelled between ranks in FP8 is not what masters round to.
void take_snapshot(EngineImpl& self) {
  EngineSnapshot& kept = *self.kept_state;
  keep(self.memory(), self.optimizer->state().content(), kept.masters_and_moments);
  keep(self.memory(), self.working().kept(), kept.weights);
  self.model->keep_stale_weights();
  kept.scaling = self.scaling;
  kept.mode = self.mode;
  kept.step = self.step;
  kept.updates = self.optimizer->state().updates();
  kept.plan = self.plan;
  kept.sites = self.sites;
  kept.formats = self.formats;
  kept.flipped = self.flipped;
  self.has_kept = true;
}

void restore_snapshot(EngineImpl& self) {
  self.memory().settle();
  const EngineSnapshot& kept = *self.kept_state;
  bring_back(self.memory(), kept.masters_and_moments, self.optimizer->state().content());
  bring_back(self.memory(), kept.weights, self.working().kept());
  self.working().changed();
  self.model->restore_stale_weights();
  self.scaling = kept.scaling;
  self.mode = kept.mode;
  self.faults.set_role(kept.mode.role);
  self.step = kept.step;
  self.optimizer->state().set_updates(kept.updates);
  self.plan = kept.plan;
  self.formats = kept.formats;
  self.optimizer->state().set_formats(self.formats.moments);
  self.sites = kept.sites;
  self.flipped = kept.flipped;
}

}  // namespace gnomon
