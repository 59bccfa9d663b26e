#include "tests/support/certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <random>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon::test {
namespace {

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

Key new_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

void add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, void (*)(X509_EXTENSION*)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()), X509_EXTENSION_free);
  if (!extension) throw Error("no extension of a certificate: " + value);
  X509_add_ext(certificate, extension.get(), -1);
}

// Without an issuer it signs itself.
Certificate new_certificate(const Key& key, const std::string& name, X509* issuer,
                            const CertificateOptions& options) {
  Certificate made(X509_new(), X509_free);
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), std::random_device{}());
  X509_gmtime_adj(X509_getm_notBefore(made.get()), options.begins);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), options.ends);
  X509_set_pubkey(made.get(), key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer != nullptr ? issuer : made.get()));
  return made;
}

std::string pem(const Key& key) {
  const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return {data, static_cast<size_t>(size)};
}

std::string pem(const Certificate& certificate) {
  const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(text.get(), certificate.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return {data, static_cast<size_t>(size)};
}

}  // namespace

Authority::Authority(const std::string& name)
    : key_(new_key()), certificate_(new_certificate(key_, name, nullptr, {})) {
  add_extension(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  add_extension(certificate_.get(), certificate_.get(), NID_key_usage, "critical,keyCertSign");
  X509_sign(certificate_.get(), key_.get(), EVP_sha256());
}

void Authority::issue(const std::filesystem::path& folder, const std::string& name,
                      const CertificateOptions& options) const {
  const Key key = new_key();
  const Certificate made = new_certificate(key, name, certificate_.get(), options);
  if (!options.names.empty()) {
    add_extension(made.get(), certificate_.get(), NID_subject_alt_name, options.names);
  }
  X509_sign(made.get(), key_.get(), EVP_sha256());
  write_file_atomically(folder / (name + ".key"), pem(key));
  write_file_atomically(folder / (name + ".pem"), pem(made));
}

void Authority::write(const std::filesystem::path& file) const {
  write_file_atomically(file, pem(certificate_));
}

}  // namespace gnomon::test
