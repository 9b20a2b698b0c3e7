# The user app has an empty password.
ssh-keygen -q -t ed25519 -N '' -f /tmp/key
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f /dev/null -h /tmp/key -p 2222 -o PidFile=none -o UsePAM=no -o PermitEmptyPasswords=yes \
	-o Subsystem='sftp internal-sftp'
