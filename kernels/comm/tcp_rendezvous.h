// How the ranks of a job find each other over TCP: rank 0 listens where all know it, the others
// come to it and say who they are; when all are there, each learns where the others listen and they
// connect, every one with every other. Nothing is encrypted and nobody proves who he is: for
// networks whose hosts are trusted.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace gnomon::tcp {

constexpr int kRanksMax = 1024;

struct Meeting {
  int rank = 0;
  int size = 1;
  std::string address;  // of rank 0: a name or a number; it listens there and at no other
  int port = 0;
  std::string job;  // ranks of another one are sent away; at most 63 characters count
  double seconds_max = 300;
};

struct Connections {
  std::vector<FileDescriptor> data;     // by rank; none with oneself
  std::vector<FileDescriptor> control;  // on rank 0 by rank; elsewhere [0], with rank 0
};

// Throws Error: what is wrong with the meeting; that the port is taken; which ranks did not come;
// why rank 0 sent this one away.
Connections meet(const Meeting& meeting);

}  // namespace gnomon::tcp
