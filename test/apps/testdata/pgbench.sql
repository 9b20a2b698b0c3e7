begin;
select n from generate_series(1, 10) n;
end;
