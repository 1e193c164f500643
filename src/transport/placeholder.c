typedef int placeholder_transport;
