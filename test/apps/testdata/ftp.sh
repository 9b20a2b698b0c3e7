mkdir -p /tmp/ftp/in /tmp/empty
head -c 10485760 /dev/zero >/tmp/ftp/large
chown ftp /tmp/ftp/in
cat >/tmp/vsftpd.conf <<'END'
listen=YES
background=NO
listen_port=2121
anonymous_enable=YES
anon_root=/tmp/ftp
anon_upload_enable=YES
anon_umask=022
write_enable=YES
no_anon_password=YES
secure_chroot_dir=/tmp/empty
nopriv_user=nobody
ftp_username=ftp
pasv_min_port=21000
pasv_max_port=21009
seccomp_sandbox=NO
isolate=NO
one_process_model=YES
isolate_network=NO
END
# As the first process of a container it crashes.
vsftpd /tmp/vsftpd.conf &
trap 'kill $!' TERM
wait
