// The working weights in units that are gathered at once, where ranks keep a part of each: the
// embedding, each layer's matrices, and the head when it is not tied. Arithmetic only.
//
// A unit is gathered in whole blocks of the wires, which are counted from the numbering's first
// element: so a unit that begins or ends inside of a block has all of that block, and its
// neighbour too.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/comm/wire_shares.h"
#include "kernels/comm/wires.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

struct WeightUnit {
  WireRange elements;  // units and the rest() are all elements, each once
  WireRange gathered;  // the same in whole blocks
  Partition parts;     // of `gathered`, from 0: even, by rank
};

class WeightUnits {
 public:
  WeightUnits(const ParameterLayout& layout, int ranks);

  int ranks() const { return ranks_; }
  const std::vector<WeightUnit>& all() const { return units_; }
  const WeightUnit& operator[](int unit) const { return units_[static_cast<size_t>(unit)]; }
  int embedding() const { return 0; }
  int layer(int index) const { return index + 1; }
  int head() const { return head_; }
  // The unit that holds an element of a matrix, given by its place in the numbering.
  int unit_of(int64_t element) const;

  // What no unit has, biases and norms, which every rank keeps.
  WireRange rest() const { return rest_; }
  WireRange gathered_rest() const { return gathered_rest_; }

  // What `rank` keeps of a unit, in the numbering of all elements.
  WireRange kept(int unit, int rank) const;
  // Piece u is unit u; the last piece is the rest.
  WireShares shares() const;
  // By unit: how its gather is laid out, as an index into layouts(), alike for units that are.
  const std::vector<int>& layout_of() const { return layout_of_; }
  const std::vector<WireLayout>& layouts() const { return layouts_; }

 private:
  void add(WireRange elements, int64_t all);
  void add_layout(const WeightUnit& unit, const ParameterLayout& layout);

  int ranks_;
  int head_ = 0;
  std::vector<WeightUnit> units_;
  WireRange rest_, gathered_rest_;
  std::vector<int> layout_of_;
  std::vector<WireLayout> layouts_;
};

}  // namespace gnomon
