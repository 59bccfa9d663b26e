// A connection on which a test says exactly what it wants.
#pragma once

#include <chrono>
#include <string>

namespace gnomon {

class RawConnection {
 public:
  explicit RawConnection(int port);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  // False when the daemon has ended the connection; its answer may say why.
  bool send(const std::string& text);
  // Reads until `text` has come or the connection ends; returns everything read so far.
  std::string read_until(const std::string& text);
  // Nothing more will be sent; the answer can still come.
  void end_sending();
  // Reads what comes for so long; whether the connection ended.
  bool ended_within(std::chrono::milliseconds time);
  void close();

 private:
  int socket_ = -1;
  std::string read_;
};

}  // namespace gnomon
