#include "tests/notify/webhook_receiver.h"

#include "base/child_process.h"

namespace gnomon::test {

std::string Delivery::label(const char* name) const {
  return std::string(alert().at("labels").at(name).as_string());
}

std::string Delivery::annotation(const char* name) const {
  return std::string(alert().at("annotations").at(name).as_string());
}

WebhookReceiver::WebhookReceiver(Answer answer, HttpTestTls tls)
    : answer_(std::move(answer)),
      server_(
          [this](const HttpRequest& request) {
            Delivery delivery{request, boost::json::parse(request.body)};
            size_t before = 0;
            {
              const std::lock_guard lock(mutex_);
              before = deliveries_.size();
              deliveries_.push_back(delivery);
            }
            const HttpReply reply = answer_ ? answer_(delivery, before) : HttpReply{};
            const std::lock_guard lock(mutex_);
            deliveries_[before].status = reply.close_unanswered ? 0 : reply.status;
            return reply;
          },
          std::move(tls)) {}

std::vector<Delivery> WebhookReceiver::all() const {
  const std::lock_guard lock(mutex_);
  return deliveries_;
}

std::vector<Delivery> WebhookReceiver::taken() const {
  std::vector<Delivery> taken;
  for (const Delivery& delivery : all()) {
    if (delivery.status >= 200 && delivery.status < 300) taken.push_back(delivery);
  }
  return taken;
}

bool WebhookReceiver::await_taken(size_t count) const {
  return eventually([&] { return taken().size() >= count; }, std::chrono::seconds(20));
}

}  // namespace gnomon::test
