module example.com/quorate/clients/go

go 1.25
