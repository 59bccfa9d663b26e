// How many bytes of requests and answers the server holds at once, over all connections. Each of
// them may be large alone; together they are bounded, and no single sender gets more than half, so
// that whoever leaves bodies unfinished, or answers unread, does not shut everybody else out.
// Knows nothing of HTTP. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace gnomon {

class ByteBudget {
 public:
  // So much of each share counts for nothing: what is small is never refused. The connections
  // bound it.
  static constexpr size_t kFree = size_t{64} << 10;

  // `max` bytes beyond what is free.
  explicit ByteBudget(size_t max) : max_(max) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // What one request holds, given back with the object. Belongs to one thread at a time.
  class Share {
   public:
    explicit Share(ByteBudget& budget) : budget_(budget) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { give_back(); }

    // Those who hold shares in the same name have half of all together. Before the first bytes.
    void set_holder(const std::string& holder);
    // Holds `bytes` in all from now on, more or less than before. False, and all is as before, when
    // there is no room for more.
    [[nodiscard]] bool resize(size_t bytes);

   private:
    void give_back() { [[maybe_unused]] const bool always = resize(0); }

    ByteBudget& budget_;
    std::string holder_;  // empty: nobody's, bounded by all alone
    size_t counted_ = 0;
  };

  size_t max() const { return max_; }
  size_t held() const;

 private:
  bool change(const std::string& holder, size_t from, size_t to);

  const size_t max_;
  mutable std::mutex mutex_;
  size_t held_ = 0;
  std::map<std::string, size_t> holders_;
};

}  // namespace gnomon
