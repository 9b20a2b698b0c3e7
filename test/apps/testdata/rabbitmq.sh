export RABBITMQ_NODENAME=rabbit@localhost RABBITMQ_MNESIA_BASE=/tmp/mnesia RABBITMQ_LOGS=- RABBITMQ_LOG_BASE=/tmp/log \
	RABBITMQ_ENABLED_PLUGINS_FILE=/tmp/plugins RABBITMQ_PID_FILE=/tmp/pid RABBITMQ_CONFIG_FILE=/tmp/rabbitmq RABBITMQ_CONF_ENV_FILE=/dev/null \
	RABBITMQ_FEATURE_FLAGS_FILE=/tmp/flags
echo '[].' >/tmp/plugins
# Without it the user guest may connect from 127.0.0.1 only.
echo 'loopback_users = none' >/tmp/rabbitmq.conf
exec /usr/lib/rabbitmq/bin/rabbitmq-server
