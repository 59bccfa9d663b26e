// Checks whether two sources say the same of one window. A source is whoever replayed it in BF16: a
// verifier, known by its name, or the trainer itself. Two verifiers of different names count as two
// sources, even on one host: liars that agree with each other are not seen.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/decide/measurement.h"

namespace gnomon::decide {

// What one source says of a window in BF16.
struct Witness {
  std::string verifier;
  bool on_trainer = false;
  Measurement measured;            // nothing in it where no ends were evaluated
  std::string end_hash;            // of the replay's weights
  std::string fingerprint;         // of its device; empty = not known
  bool fingerprint_equal = false;  // to the run's
  // BF16 suffers, too, at a step that was suspected; or is not finite at a window's end.
  std::optional<bool> suffers;
  std::vector<OtherBatch> other_batches = {};  // steps in which the run took other tokens
  // Per cent that the trainer's own reported losses lie over this replay's at its end.
  std::optional<double> reports_percent = {};
};

struct Agreement {
  bool agrees = false;
  bool bitwise = false;  // their bits could be compared
  std::string sentence;  // how they were compared and what came out
};

// Between equal fingerprints every number and the weights' hash must be the same to the last bit.
// Otherwise D and the BF16 loss may differ by `noise_percent`, and a suspected step must go the
// same way. Of verifiers both or none say that the run took other tokens; a trainer cannot say it.
Agreement compare_witnesses(const Witness& one, const Witness& other, double noise_percent);

// The same where what evaluating in FP8 costs at equal weights is left out.
bool agree_but_for_offset(Witness one, Witness other, double noise_percent);
bool offsets_apart(const Witness& one, const Witness& other, double noise_percent);

// Does the trainer's own report bear a gap out? `reports_percent` is how far the trainer's reported
// losses lie over the replay's at the window's end. A gap in the weights shows there, smaller.
bool borne_out(const std::optional<double>& reports_percent, double d_percent);

}  // namespace gnomon::decide
