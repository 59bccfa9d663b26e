// Certificates of a test's own authority, made in the test by OpenSSL.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace gnomon::test {

struct CertificateOptions {
  std::string names = "IP:127.0.0.1,DNS:localhost";  // what it is for; a client's needs none
  long begins = -3600;                               // seconds from now
  long ends = 24 * 3600;
};

class Authority {
 public:
  explicit Authority(const std::string& name);

  // Writes FOLDER/NAME.pem and FOLDER/NAME.key, replacing what is there, the certificate last.
  void issue(const std::filesystem::path& folder, const std::string& name,
             const CertificateOptions& options = {}) const;
  // Its own certificate.
  void write(const std::filesystem::path& file) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

}  // namespace gnomon::test
